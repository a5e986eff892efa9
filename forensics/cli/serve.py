"""`forensics serve DIR`."""

from __future__ import annotations

from pathlib import Path


def serve(folder: Path, /, *, port: int = 0) -> int:
    """Show the reports of a folder in a browser on this machine, and record their reviews.

    Listens on 127.0.0.1 only. Writing needs the token in the address that is printed.

    Parameters
    ----------
    folder
        A folder of results of `forensics analyze`, or one of them.
    port
        To listen on; default a free one.
    """
    import secrets

    from forensics.errors import ForensicsError
    from forensics.review_server import HOST, found_reports, serve_reports

    if not folder.is_dir():
        raise ForensicsError(f"{folder}: not found; expected a folder with results of `forensics analyze`")
    if not found_reports(folder):
        raise ForensicsError(
            f"{folder}: holds no report.html; expected results of `forensics analyze`, or folders of them"
        )
    token = secrets.token_urlsafe(24)
    with serve_reports(folder, token, port) as server:
        print(f"{len(found_reports(folder))} reports: http://{HOST}:{server.server_port}/?token={token}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
