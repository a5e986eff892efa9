from __future__ import annotations

from pathlib import Path

import pytest
from support import ROOT, MemorySink, load

from forensics.artifact import Head, Source
from forensics.errors import ArtifactError
from forensics.formats import formats, strace
from forensics.formats._strace_lines import Clock, Note, read_line, split_note

DUMPS = ROOT / "fixtures" / "process-dumps" / "artifacts"

# strace 6.1 -f on a program that forks while a thread waits for a lock, so that its child waits for it as well.
FORK = """\
execve("/usr/bin/python3", ["python3", "fk.py", "--local-rank=1"], 0x7ffd45e0d780 /* 35 vars */) = 0
brk(NULL) = 0x55c93e669000
clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD|CLONE_SYSVSEM, child_tid=0x7f01, exit_signal=0} => {parent_tid=[17733]}, 88) = 17733
futex(0x557dcc85c720, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, FUTEX_BITSET_MATCH_ANYstrace: Process 17733 attached
 <unfinished ...>
[pid 17733] rseq(0x7f01f6edbfe0, 0x20, 0, 0x53053053) = 0
[pid 17733] futex(0x557dcc85c720, FUTEX_WAKE_PRIVATE, 1 <unfinished ...>
[pid 17732] <... futex resumed>)        = 0
[pid 17733] <... futex resumed>)        = 1
[pid 17733] futex(0x557dcc777530, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>
[pid 17732] clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f01f7c3fe50) = 17734
[pid 17732] wait4(17734, strace: Process 17734 attached
 <unfinished ...>
[pid 17734] set_robust_list(0x7f01f7c3fe60, 24) = 0
[pid 17734] futex(0x557dcc777530, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>
[pid 17733] <... futex resumed>)        = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
strace: Process 17732 detached
strace: Process 17733 detached
strace: Process 17734 detached
"""  # noqa: E501
# strace -f -o -tt, ended by a signal; reads cut short.
KILLED = """\
11578 23:59:58.177871 execve("/usr/bin/python3", ["python3", "spin.py"], 0x7ffd45e0d780 /* 35 vars */) = 0
11578 23:59:58.180714 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD <unfinished ...>
11620 23:59:59.181000 read(3, "abc) = 5", 4096) = 8
11620 23:59:59.181400 read(3,  <unfinished ...>
11578 23:59:59.181478 <... clone resumed>, child_tidptr=0x7f33e2ffde50) = 11620
11578 23:59:59.181581 wait4(11620,  <unfinished ...>
11620 00:00:01.185461 +++ killed by SIGKILL +++
11578 00:00:01.185476 <... wait4 resumed>0x7ffdc3bc0c0c, 0, NULL) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)
11578 00:00:01.185490 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_KILLED, si_pid=11620, si_uid=0, si_status=SIGKILL} ---
11578 00:00:01.185505 wait4(11620,  <unfinished ...>
11578 00:00:02.385520 +++ killed by SIGSEGV (core dumped) +++
"""
# -f -ttt -y -T: a worker in front of a full pipe, a parent that polls, and CUDA's way of waiting.
BLOCKED = """\
strace: Process 40 attached with 3 threads
strace: Process 50 attached
[pid    41] 1795965372.925239 restart_syscall(<... resuming interrupted read ...> <unfinished ...>
[pid    50] 1795965372.926000 write(9<pipe:[191792]>, "\\200\\4"..., 65536 <unfinished ...>
[pid    40] 1795965373.000000 poll([{fd=4<pipe:[191793]>, events=POLLIN}], 1, 5000) = 0 (Timeout) <5.005000>
[pid    40] 1795965378.000000 wait4(50, 0x7ffcbf118e8c, WNOHANG, NULL) = 0 <0.000010>
[pid    40] 1795965378.000100 getpid()  = 40 <0.000004>
[pid    42] 1795965378.000200 ioctl(17</dev/nvidiactl>, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20)) = 0 <0.000004>
"""
SPIN = "".join(f"[pid    42] 1795965378.0003{n:02} sched_yield()           = 0 <0.000002>\n" for n in range(12))


def read(tmp_path: Path, text: str, name: str = "strace.txt") -> MemorySink:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load(strace, path)


def sure(text: str) -> int:
    return strace.recognise(Head("x", text.encode(), True))


def threads(sink: MemorySink) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(r["thread"], r["state"], r["wait_kind"], r["wait_on"]) for r in sink.rows("thread_state")]


def test_a_child_that_waits_for_a_lock_of_its_parents_thread_shows_the_same_address(tmp_path: Path) -> None:
    sink = read(tmp_path, FORK)
    assert threads(sink) == [
        ("17732", "waiting", "child", "17734"),
        ("17733", "waiting", "futex", "0x557dcc777530"),
        ("17734", "waiting", "futex", "0x557dcc777530"),
    ]
    assert [row["proc"] for row in sink.rows("thread_state")] == [0, 0, 1]
    assert [(p["pid"], p.get("local_rank")) for p in sink.procs.values()] == [(17732, 1), (17734, None)]
    facts = {(fact["key"], fact["proc"]): fact["value"] for fact in sink.facts}
    assert (facts["parent_pid", 1], facts["command", 0]) == ("17732", "python3 fk.py --local-rank=1")
    assert {row["row"]: row["line"] for row in sink.rows("position")} == {0: 12, 1: 10, 2: 15}
    assert sink.clock_kind == "none"


def test_what_a_killed_thread_was_in_is_kept(tmp_path: Path) -> None:
    sink = read(tmp_path, KILLED)
    assert threads(sink) == [("11578", "killed", "child", "11620"), ("11620", "killed", "io", "fd 3")]
    assert sink.procs == {0: {"pid": 11578, "signal": 11}, 1: {"pid": 11620}}
    ends = {fact["proc"]: fact["value"] for fact in sink.facts if fact["key"] == "end"}
    assert ends == {0: "killed by SIGSEGV", 1: "killed by SIGKILL"}
    waited = sink.rows("thread_state")[0]
    (cover,) = [c for c in sink.coverage if c["proc"] == 0]
    # From the first wait4 on, which a signal interrupted only, over midnight.
    assert (sink.clock_kind, cover["to_ns"] - waited["ts_ns"]) == ("relative", 3_203_939_000)


def test_polls_writes_and_spins_tell_what_they_wait_for(tmp_path: Path) -> None:
    sink = read(tmp_path, BLOCKED + SPIN)
    assert threads(sink) == [
        ("40", "waiting", "io", "fd 4 pipe:[191793]"),
        ("50", "waiting", "io", "fd 9 pipe:[191792]"),
        ("41", "waiting", None, None),
        ("42", "running", "device", "sched_yield"),
    ]
    assert [row["proc"] for row in sink.rows("thread_state")] == [0, 1, 0, 0]
    assert sink.clock_kind == "epoch"
    assert sink.rows("thread_state")[1]["ts_ns"] == 1795965372926000000
    names = {row["id"]: row["function"] for row in sink.rows("stack")}
    assert [names[row["stack_id"]] for row in sink.rows("thread_state")[:2]] == ["poll", "write"]


def test_a_wait_that_ended_is_no_wait(tmp_path: Path) -> None:
    (row,) = threads(read(tmp_path, "5 futex(0x1234, FUTEX_WAIT_PRIVATE, 2, NULL) = 0\n"))
    assert row == ("5", "running", None, None)
    (row,) = threads(read(tmp_path, "5 futex(0x1234, FUTEX_WAIT_PRIVATE, 2, NULL) = -1 ETIMEDOUT (Connection x)\n"))
    assert row == ("5", "waiting", "futex", "0x1234")


@pytest.mark.parametrize(
    ("call", "kind", "on"),
    [
        ("futex(0x7f35b4000ba0, FUTEX_WAIT, 0, NULL", "futex", "0x7f35b4000ba0"),
        ("futex(0x7f35b4000ba0, FUTEX_LOCK_PI_PRIVATE, NULL", "futex", "0x7f35b4000ba0"),
        ("futex(0x7f35b4000ba0, FUTEX_WA", None, "futex"),
        ("wait4(-1, ", "child", "any"),
        ("waitid(P_PID, 77, ", "child", "77"),
        ("recvfrom(5<TCP:[127.0.0.1:50000->127.0.0.1:29500]>, ", "io", "fd 5 TCP:[127.0.0.1:50000->127.0.0.1:29500]"),
        ("select(6, [4 5], NULL, NULL, NULL", "io", "fd 4, fd 5"),
        ("epoll_wait(6, ", "io", "fd 6"),
        ('openat(AT_FDCWD, "/mnt/nfs/data.bin", O_RDONLY', "io", "/mnt/nfs/data.bin"),
        ("flock(3</tmp/lock>, LOCK_EX", "io", "fd 3 /tmp/lock"),
        ("ioctl(17, _IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20), 0x7f", "device", "fd 17"),
        ("clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, {tv_sec=1", None, "sleep"),
        ("mq_timedreceive(4, ", "queue", "4"),
        ("mmap(NULL, 4096, ", None, "mmap"),
        ("restart_syscall(<... resuming interrupted futex ...>", "futex", "futex"),
    ],
)
def test_every_blocking_call_has_its_kind(tmp_path: Path, call: str, kind: str | None, on: str) -> None:
    (row,) = threads(read(tmp_path, f"77 14:00:00 getpid() = 76\n77 14:00:01 {call} <unfinished ...>\n"))
    assert row == ("77", "waiting", kind, on)


def test_descriptors_are_named_by_what_opened_them(tmp_path: Path) -> None:
    text = (
        "5 pipe2([3, 4], O_CLOEXEC) = 0\n"
        '5 openat(AT_FDCWD, "/dev/shm/x", O_RDWR) = 6\n'
        "5 clone(child_stack=NULL, flags=SIGCHLD) = 9\n"
        "5 close(6) = 0\n"
        "5 write(4,  <unfinished ...>\n"
        "9 read(3,  <unfinished ...>\n"
    )
    assert threads(read(tmp_path, text)) == [
        ("5", "waiting", "io", "fd 4 pipe 3-4"),
        ("9", "waiting", "io", "fd 3 pipe 3-4"),
    ]


def test_frames_of_minus_k_say_what_the_call_is_for(tmp_path: Path) -> None:
    text = (
        "5 futex(0x1234, FUTEX_WAIT_BITSET_PRIVATE, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>\n"
        " > /lib/x86_64-linux-gnu/libc.so.6(pthread_cond_wait+0x211) [0x90]\n"
        " > /opt/torch/lib/libtorch_cpu.so(gloo::barrier(gloo::BarrierOptions&)+0x11) [0x90]\n"
        " > /opt/torch/lib/libtorch_cpu.so() [0x91]\n"
    )
    sink = read(tmp_path, text)
    assert threads(sink) == [("5", "waiting", "collective", "0x1234 barrier")]
    assert len(sink.rows("stack")) == 4


def test_a_file_of_one_thread_takes_its_id_from_the_files_name(tmp_path: Path) -> None:
    sink = read(tmp_path, "1795965372.92 futex(0x12, FUTEX_WAIT_PRIVATE, 2, NULL", "trace.7427")
    assert threads(sink) == [("7427", "waiting", "futex", "0x12")]
    assert sink.procs == {0: {}}  # it may be any thread of its process


def test_relative_times_add_up(tmp_path: Path) -> None:
    text = "     0.000000 getpid() = 5\n     1.500000 getppid() = 4\n     0.250000 read(0,  <unfinished ...>\n"
    sink = read(tmp_path, text)
    assert (sink.rows("thread_state")[0]["ts_ns"], sink.clock_kind) == (1_750_000_000, "relative")


def test_commands_that_came_and_went_are_not_threads_at_the_end(tmp_path: Path) -> None:
    text = (
        '5 execve("/bin/sh", ["sh"], 0x0) = 0\n5 vfork() = 6\n6 execve("/bin/true", ["true"], 0x0) = 0\n'
        "6 exit_group(1) = ?\n6 +++ exited with 1 +++\n5 exit_group(3) = ?\n5 +++ exited with 3 +++\n"
    )
    sink = read(tmp_path, text)
    assert threads(sink) == [("5", "exited", None, None)]
    assert sink.procs == {0: {"pid": 5, "exit_code": 3}}


def test_the_traces_of_a_real_deadlock_and_its_healthy_twin_differ() -> None:
    main, worker, feeder = load(strace, DUMPS / "strace.txt").rows("thread_state")
    assert (main["state"], main["wait_kind"]) == ("waiting", "io")
    assert (worker["state"], worker["wait_kind"], feeder["proc"]) == ("waiting", "futex", main["proc"])
    assert worker["proc"] != main["proc"]
    healthy = load(strace, DUMPS.parent.parent / "process-dumps-healthy" / "artifacts" / "strace.txt")
    assert "running" in {row["state"] for row in healthy.rows("thread_state")}
    address = worker["wait_on"]
    assert f"futex_word={address}" in (DUMPS / "gdb_worker.txt").read_text()


def test_traces_are_recognised_and_programs_and_logs_are_not() -> None:
    assert all(sure(text) > 40 for text in (FORK, KILLED, BLOCKED, "futex(0x7f, FUTEX_WAIT, 2, NULL"))
    assert sure("strace: Process 7 attached\nfutex(0x55, FUTEX_WAstrace: Process 7 detached\n <detached ...>\n") > 40
    log = "".join(f"2026-11-29 14:53:20,954 | INFO | step {step}\n" for step in range(40))
    assert sure(log + FORK) == 0
    assert sure("f(x) = 1\ng(x) = 2\nread(x)\n") == sure("") == sure("--- SIGTERM {x} ---\n") == 0
    assert sure("import os\nos.read(3, 5)\nread(fd, 5)\nprint(1)\n") == 0
    head = Source(DUMPS / "strace.txt", "strace.txt").head()
    assert max(formats(), key=lambda name: formats()[name].recognise(head)) == "strace"


@pytest.mark.parametrize("text", [FORK, KILLED, BLOCKED])
def test_a_trace_may_end_anywhere(tmp_path: Path, text: str) -> None:
    for cut in range(0, len(text), 37):
        try:
            sink = read(tmp_path, text[:cut], f"{cut}.txt")
        except ArtifactError:
            assert "(" not in text[:cut].rpartition("\n")[0]
            continue
        assert (sink.quality == "partial") == (not text[:cut].endswith("\n"))
        assert {row["state"] for row in sink.rows("thread_state")} <= {"running", "waiting", "killed", "exited"}


def test_lines_of_threads_interleave_in_any_order(tmp_path: Path) -> None:
    lines = [f"[pid {pid}] futex(0x{pid:x}, FUTEX_WAIT_PRIVATE, 2, NULL <unfinished ...>" for pid in range(100, 140)]
    ends = [f"[pid {pid}] <... futex resumed>) = 0" for pid in range(138, 99, -2)]
    rows = threads(read(tmp_path, "\n".join(["strace: Process 100 attached with 40 threads", *lines, *ends]) + "\n"))
    assert len(rows) == 40
    assert {int(row[0]) % 2: row[1] for row in rows} == {0: "running", 1: "waiting"}


@pytest.mark.parametrize("text", ["", "strace: attach: ptrace(PTRACE_SEIZE, 5): No such process\n", "hello\n", "\0\0"])
def test_what_holds_no_call_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError):
        read(tmp_path, text)


def test_hostile_traces_are_bounded(tmp_path: Path) -> None:
    opens = "".join(f'1 openat(AT_FDCWD, "{n}", O_RDONLY) = {n}\n' for n in range(5000))
    forks = "".join(f"1 fork() = {n}\n{n} read({n % 5000}, <unfinished ...>\n" for n in range(2, 4000))
    odd = (
        "99999999999 read(1, <unfinished ...>\n4294967295 clone(CLONE_THREAD) = 4294967295\n"
        "7 clone(CLONE_THREAD) = 8\n8 clone(CLONE_THREAD) = 7\n7 read(99999999999999999999,\n"
        '9 execve("' + "\\" * 9000 + "\n9 poll([" + "{fd=1<" * 3000 + "\n+++ exited with -9999999999 +++\n"
        "[pid  ] x(\n<... read resumed>\n--- SIG {\n99:99:99.999999999999 getpid() = 1\n7 select(1, ["
        + "9 " * 5000
        + "]\n"
    )
    sink = read(tmp_path, opens + forks + odd)
    assert 4000 <= len(threads(sink)) < 4100
    assert all(len(row[3] or "") <= 400 for row in threads(sink))


def test_lines_are_read_with_every_prefix() -> None:
    line = read_line('[pid  7] 14:53:37.479188 (+     0.000123) [00007f473dbbead7] read(3, "a", 1) = 1 <0.000009>')
    assert line is not None and line.pid == 7
    assert line.time == ("day", 53_617_479_188_000)
    assert (line.said.name, line.said.text, line.said.result) == ("read", '3, "a", 1', "1")
    assert read_line('11864 [  59] execve("/usr/bin/true", ["true"], 0x7f) = 0') is not None
    assert read_line("step 5 done") is None
    assert split_note("futex(0x1strace: Process 5 detached") == ("futex(0x1", Note(5, False, None))


def test_times_of_day_go_on_after_midnight() -> None:
    clock = Clock()
    assert clock.ns(("day", 86_399 * 10**9)) == 86_399 * 10**9
    assert clock.ns(("day", 10**9)) == 86_401 * 10**9
    assert clock.ns(("epoch", 10**18)) is None


def test_times_that_no_clock_has_are_left_out(tmp_path: Path) -> None:
    text = "     0.000000 getpid() = 5\n" + "     99999999.000000 read(0,  <unfinished ...>\n" * 200
    assert sink_times(tmp_path, text) == [None]
    assert sink_times(tmp_path, "9999999999.999999 read(0,  <unfinished ...>\n") == [None]


def sink_times(tmp_path: Path, text: str) -> list[int | None]:
    return [row["ts_ns"] for row in read(tmp_path, text).rows("thread_state")]
