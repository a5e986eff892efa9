"""What a blocked function or system call waits for: the data behind `thread_state.wait_kind` and `wait_on`.

A stack is read from its innermost frame outwards. As long as frames are named here, or are plumbing between those that
are, the outermost one named says most: `select` inside `Queue.get` inside `_try_get_data` waits for a batch.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Row(NamedTuple):
    kind: str | None  # thread_state.wait_kind; None for sleep, which waits for nothing
    what: str  # "" for the function's own name
    file: str  # end of the file's path; "" for native code
    functions: str  # names without underscores in front (native) or class (Python), separated by spaces
    argument: str = ""  # of the function: what it waits for
    inner: str = ""  # kind or `what` that the frames inside it must have been found to wait for
    stops: bool = False  # nothing outside it says more


_C10D = "torch/distributed/distributed_c10d.py"
_LOADER, _WORKERS = "torch/utils/data/", "torch/utils/data/_utils/"
_COLLECTIVES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced "
    "all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list destroy_process_group "
    "gather gather_object init_process_group irecv isend monitored_barrier new_group recv recv_object_list reduce "
    "reduce_scatter reduce_scatter_tensor scatter scatter_object_list send send_object_list split_group "
    "_all_gather_base _new_group_with_tag _reduce_scatter_base _store_based_barrier"
)

# Standard library of Python 3.8 to 3.14, torch 1.8 to 2.14, vLLM. Names are those of faulthandler and py-spy.
PYTHON = (
    Row("futex", "threading.Condition.wait", "threading.py", "wait wait_for"),
    Row("futex", "threading.Event.wait", "threading.py", "Event.wait", "self"),
    Row("futex", "threading.Barrier.wait", "threading.py", "Barrier.wait Barrier._wait _wait"),
    Row("futex", "threading.Semaphore.acquire", "threading.py", "acquire", inner="threading.Condition.wait"),
    Row("futex", "threading.Thread.join", "threading.py", "join _wait_for_tstate_lock _shutdown", "self"),
    Row("futex", "Future.result", "concurrent/futures/_base.py", "result exception wait as_completed"),
    Row("queue", "ThreadPoolExecutor.task", "concurrent/futures/thread.py", "_worker"),
    Row("queue", "ProcessPoolExecutor.task", "concurrent/futures/process.py", "_process_worker", inner="queue"),
    Row("queue", "queue.Queue.get", "queue.py", "get", "self"),
    Row("queue", "queue.Queue.put", "queue.py", "put", "self"),
    Row("queue", "queue.Queue.join", "queue.py", "join", "self"),
    Row("queue", "multiprocessing.Queue.get", "multiprocessing/queues.py", "get", "self"),
    Row("queue", "multiprocessing.Queue.put", "multiprocessing/queues.py", "put", "self"),
    # The feeder thread of a queue: with nothing to send, and in front of a pipe that nobody empties.
    Row("queue", "multiprocessing.Queue.idle", "multiprocessing/queues.py", "_feed", inner="futex"),
    Row("queue", "multiprocessing.Queue.send", "multiprocessing/queues.py", "_feed", inner="io"),
    # A process that ends waits until its feeder threads have sent everything.
    Row("queue", "multiprocessing.Queue.flush", "multiprocessing/queues.py", "join_thread _finalize_join"),
    Row("queue", "multiprocessing.Pool.task", "multiprocessing/pool.py", "worker", inner="queue"),
    Row("futex", "multiprocessing.Pool.result", "multiprocessing/pool.py", "get wait join"),
    Row("futex", "multiprocessing.Lock.acquire", "multiprocessing/synchronize.py", "acquire __enter__", "self"),
    Row("futex", "multiprocessing.Condition.wait", "multiprocessing/synchronize.py", "wait wait_for", "self"),
    Row("io", "multiprocessing.Manager", "multiprocessing/managers.py", "_callmethod"),
    Row("io", "pipe.recv", "multiprocessing/connection.py", "_recv _recv_bytes recv recv_bytes _poll poll wait"),
    Row("io", "pipe.send", "multiprocessing/connection.py", "_send _send_bytes send send_bytes"),
    Row("child", "multiprocessing.Process.join", "multiprocessing/process.py", "join", "self"),
    Row("child", "multiprocessing.Process.join", "multiprocessing/popen_fork.py", "poll wait"),
    Row("child", "multiprocessing.Process.join", "multiprocessing/popen_forkserver.py", "poll wait"),
    Row("child", "subprocess.Popen.wait", "subprocess.py", "wait _wait _try_wait", "self"),
    Row("child", "subprocess.Popen.communicate", "subprocess.py", "communicate _communicate", "self"),
    Row("child", "subprocess.Popen", "subprocess.py", "_execute_child", "self"),
    Row("child", "torch.multiprocessing.spawn", "torch/multiprocessing/spawn.py", "join"),
    Row("child", "torchrun.workers", "torch/distributed/elastic/agent/server/api.py", "_invoke_run"),
    Row("io", "select", "selectors.py", "select"),
    Row("io", "asyncio", "asyncio/base_events.py", "_run_once"),
    Row("io", "socket", "socket.py", "accept connect create_connection readinto sendall"),
    Row("io", "socket", "ssl.py", "connect do_handshake read recv recv_into send sendall write"),
    Row("queue", "DataLoader.batch", _LOADER + "dataloader.py", "_try_get_data", inner="queue"),
    Row("child", "DataLoader.shutdown", _LOADER + "dataloader.py", "_shutdown_workers", inner="child"),
    Row("queue", "DataLoader.index", _WORKERS + "worker.py", "_worker_loop", inner="multiprocessing.Queue.get"),
    Row("queue", "DataLoader.unpinned", _WORKERS + "pin_memory.py", "_pin_memory_loop do_one_step", inner="queue"),
    Row("queue", "shm_broadcast", "device_communicators/shm_broadcast.py", "acquire_read acquire_write"),
    Row("collective", "", _C10D, _COLLECTIVES),
    Row("collective", "rendezvous", "torch/distributed/rendezvous.py", "_create_c10d_store _env_rendezvous_handler"),
    Row("collective", "exit barrier", "torch/distributed/elastic/agent/server/api.py", "_exit_barrier"),
    Row("device", "torch.cuda.synchronize", "torch/cuda/__init__.py", "synchronize"),
    Row("device", "torch.cuda.synchronize", "torch/cuda/streams.py", "synchronize"),
)  # fmt: skip

# glibc 2.17 to 2.41, CPython, PyTorch, gloo, NCCL, OpenMP. Without leading underscores, `GI_` and symbol versions.
NATIVE = (
    Row(
        "futex", "futex", "",
        "futex_abstimed_wait_common64 futex_abstimed_wait_common futex_abstimed_wait_cancelable64 futex_wait "
        "futex_abstimed_wait64 futex_wait_cancelable futex_wait_simple futex_reltimed_wait_cancelable do_futex_wait "
        "do_futex_wait.constprop.0",
        "futex_word",
    ),
    Row(
        "futex", "pthread_cond_wait", "",
        "pthread_cond_wait pthread_cond_timedwait pthread_cond_timedwait64 pthread_cond_clockwait "
        "pthread_cond_clockwait64 pthread_cond_wait_common std::condition_variable::wait",
        "cond",
    ),
    Row(
        "futex", "pthread_mutex_lock", "",
        "lll_lock_wait lll_lock_wait_private pthread_mutex_lock pthread_mutex_lock_full pthread_mutex_timedlock "
        "lll_mutex_lock_optimized",
        "mutex",
    ),
    Row(
        "futex", "sem_wait", "",
        "new_sem_wait new_sem_wait_slow new_sem_wait_slow64 sem_wait sem_timedwait sem_clockwait sem_clockwait64 "
        "new_sem_wait_slow64.constprop.0",
        "sem",
    ),
    Row("futex", "pthread_rwlock", "", "pthread_rwlock_rdlock pthread_rwlock_wrlock", "rwlock"),
    Row("futex", "pthread_join", "", "pthread_join pthread_timedjoin_ex pthread_clockjoin_ex", "threadid"),
    Row("futex", "malloc", "", "malloc calloc realloc free int_malloc int_free arena_get2", inner="futex", stops=True),
    Row(
        "futex", "Lock.acquire", "",
        "PyThread_acquire_lock_timed PyThread_acquire_lock acquire_timed lock_PyThread_acquire_lock rlock_acquire "
        "PyMutex_LockTimed",
        "lock",
    ),
    Row("futex", "GIL", "", "take_gil", stops=True),
    Row(
        "futex", "GIL", "",
        "PyEval_RestoreThread PyEval_AcquireThread PyGILState_Ensure "
        "pybind11::gil_scoped_acquire::gil_scoped_acquire",
        inner="futex", stops=True,
    ),
    Row(
        "futex", "OpenMP barrier", "",
        "do_wait do_spin gomp_barrier_wait_end gomp_barrier_wait gomp_team_barrier_wait_end gomp_team_barrier_wait "
        "gomp_team_barrier_wait_final gomp_simple_barrier_wait gomp_team_end kmp_suspend_64 kmp_wait_template "
        "kmp_fork_barrier kmp_join_barrier kmp_barrier",
    ),
    Row("child", "waitpid", "", "wait3 wait4 waitid waitpid os_waitpid os_waitpid_impl", "pid"),
    Row(
        "io", "", "",
        "accept accept4 connect fdatasync fsync poll ppoll pread pread64 pselect pwrite64 read readv recv recvfrom "
        "recvmsg select send sendmsg sendto write writev",
        "fd",
    ),
    Row("io", "", "", "epoll_wait epoll_pwait", "epfd"),
    Row(None, "sleep", "", "clock_nanosleep nanosleep sleep usleep time_sleep"),
    Row("collective", "c10d::Work::wait", "", "c10d::Work::wait"),
    Row(
        "collective", "gloo", "",
        "gloo::transport::tcp::UnboundBuffer::waitRecv gloo::transport::tcp::UnboundBuffer::waitSend "
        "gloo::transport::tcp::Buffer::waitRecv gloo::transport::tcp::Buffer::waitSend",
    ),
    Row("collective", "all_reduce", "", "gloo::allreduce"),
    Row("collective", "all_gather", "", "gloo::allgather gloo::allgatherv"),
    Row("collective", "all_to_all", "", "gloo::alltoall gloo::alltoallv"),
    Row("collective", "barrier", "", "gloo::barrier"),
    Row("collective", "broadcast", "", "gloo::broadcast"),
    Row("collective", "gather", "", "gloo::gather gloo::gatherv"),
    Row("collective", "reduce", "", "gloo::reduce"),
    Row("collective", "scatter", "", "gloo::scatter"),
    Row(
        "collective", "store", "",
        "c10d::TCPStore::doWait c10d::TCPStore::doGet c10d::TCPStore::get c10d::TCPStore::wait c10d::PrefixStore::get "
        "c10d::PrefixStore::wait c10d::Store::wait",
    ),
    Row(
        "collective", "", "",
        "ncclAllGather ncclAllReduce ncclBroadcast ncclCommAbort ncclCommDestroy ncclCommInitRank "
        "ncclCommInitRankConfig ncclGroupEnd ncclRecv ncclReduce ncclReduceScatter ncclSend",
    ),
    # Threads of libraries that wait for work: normal, whatever the process does.
    Row("queue", "gloo work", "", "c10d::ProcessGroupGloo::runLoop", inner="futex"),
    Row(
        "queue", "autograd work", "",
        "torch::autograd::ReadyQueue::pop torch::autograd::Engine::thread_main", inner="futex",
    ),
    Row("queue", "thread pool", "", "c10::ThreadPool::main_loop caffe2::ThreadPool::main_loop", inner="futex"),
    Row(
        "futex", "NCCL watchdog", "",
        "c10d::ProcessGroupNCCL::watchdogHandler c10d::ProcessGroupNCCL::heartbeatMonitor "
        "c10d::ProcessGroupNCCL::Watchdog::runLoop c10d::ProcessGroupNCCL::HeartbeatMonitor::runLoop "
        "c10d::ProcessGroupNCCL::ncclCommWatchdog",
    ),
    Row("io", "NCCL proxy", "", "ncclProxyService ncclProxyServiceUDS ncclProxyProgress persistentSocketThread"),
    Row("io", "gloo transport", "", "gloo::transport::tcp::Loop::run"),
)  # fmt: skip

# CUDA's own functions, whatever their name: a call that has not come back waits for the driver or the device.
DEVICE_CALL = re.compile(r"(?:cuda|cu)[A-Z]\w{2,60}$")
# Code without symbols that spins is told by its library.
LIBRARIES = (("libcuda.so", "device", "CUDA driver"), ("libnccl.so", "collective", "NCCL"))

# Frames between a system call and what says more: files of Python's library, libraries and sources of native code.
PLUMBING_FILES = (
    "threading.py", "queue.py", "selectors.py", "subprocess.py", "socket.py", "ssl.py", "contextlib.py",
    "multiprocessing/queues.py", "multiprocessing/connection.py", "multiprocessing/process.py",
    "multiprocessing/popen_fork.py", "multiprocessing/popen_forkserver.py", "multiprocessing/pool.py",
    "multiprocessing/synchronize.py", "concurrent/futures/_base.py", "torch/distributed/c10d_logger.py", _C10D,
    "torch/utils/_contextlib.py", "torch/multiprocessing/spawn.py", "torch/utils/data/_utils/pin_memory.py",
)  # fmt: skip
PLUMBING = re.compile(
    r"(?:^|/)(?:libc|libpthread|libstdc\+\+|libpython[\d.]*|libgcc_s|libgomp[\w-]*|libffi|ld-linux[\w-]*)[.-][\w.-]*so"
    r"|(?:^|/)libc-2|(?:^|/)(?:nptl|sysdeps|posix|io|socket|Python|Objects|Modules|Include)/|^python3[\d.]*$|\.[ch]$"
    r"|linux-vdso|\[vdso\]"
)
GLUE = {"syscall", "clock_gettime", "vdso_clock_gettime", "gettimeofday", "sched_yield"}
# Where the interpreter runs Python code: frames of a native stack beyond it belong to other functions.
INTERPRETER = re.compile(r"_?PyEval_(?:Eval\w*|Vector)$")
CRASHES = {"abort", "raise", "gsignal", "pthread_kill", "pthread_kill_implementation", "pthread_kill_internal"}

# Waits that a library may spin in: the thread runs and yet waits.
SPINS = {"device", "collective", "shm_broadcast", "OpenMP barrier"}

# System calls: what they wait for, and which argument (from 0) names it.
SYSCALLS: dict[str, tuple[str | None, int]] = {
    **dict.fromkeys(("futex", "futex_wait", "futex_waitv"), ("futex", 0)),
    **dict.fromkeys(("semop", "semtimedop"), ("futex", 0)),
    **dict.fromkeys(("msgrcv", "msgsnd", "mq_timedreceive", "mq_timedsend"), ("queue", 0)),
    **dict.fromkeys(("wait4", "waitpid", "waitid"), ("child", 0)),
    **dict.fromkeys(
        (
            "accept", "accept4", "connect", "copy_file_range", "epoll_pwait", "epoll_pwait2", "epoll_wait", "fcntl",
            "fdatasync", "flock", "fsync", "io_uring_enter", "ioctl", "poll", "ppoll", "pread64", "preadv", "pselect6",
            "pwrite64", "pwritev", "read", "readv", "recv", "recvfrom", "recvmmsg", "recvmsg", "select", "send",
            "sendfile", "sendmmsg", "sendmsg", "sendto", "splice", "write", "writev",
        ),
        ("io", 0),
    ),
    **dict.fromkeys(("access", "execve", "lstat", "mkdir", "open", "rename", "stat", "unlink"), ("io", 0)),
    **dict.fromkeys(("newfstatat", "openat", "statx", "unlinkat"), ("io", 1)),
    **dict.fromkeys(("clock_nanosleep", "nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait"), (None, 0)),
}  # fmt: skip
