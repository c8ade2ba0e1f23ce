"""The inside of the sandbox: ``python -I -S jail.py STATUS_FD < request.json``. It imports the standard library alone.

A supervisor makes the namespaces and holds the clock; its child builds a root file system out of read-only binds,
drops its uid and every capability, sets the limits and becomes the program. As process 1 of its own pid namespace the
program takes all that it started with it when it ends.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

NOBODY = 65534
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY, ATTR_NOSUID = 2, -100, 0x8000, 1, 2
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
BOOT = "import runpy, sys; path, name = sys.argv[1:]; sys.argv[:] = [path]; runpy.run_path(path, run_name=name)"

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> None:
    """A C library call by name; raises OSError that names it."""
    function = getattr(libc, name)
    if function(*(a.encode() if isinstance(a, str) else a for a in arguments)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def map_ids(inside: int, user: int, group: int) -> None:
    """In a new user namespace: one user and one group exist, under the number ``inside``."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def leave_host(root: bool) -> None:
    """New namespaces for the child to be born into; an ordinary user first becomes root of a user namespace."""
    user, group = os.getuid(), os.getgid()
    call("unshare", NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET | (0 if root else NEWUSER))
    if not root:
        map_ids(0, user, group)


def bind(source: str, target: str) -> None:
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT))
    mount(source, target, None, MS_BIND | MS_REC)


def make_read_only(path: str) -> None:
    """The mount at ``path`` and all below it."""
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY | ATTR_NOSUID, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, ctypes.byref(attributes), size)


def build_root(root: str, binds: list[str], folder_bytes: int) -> None:
    """A read-only root made of ``binds``, with its own /proc and one writable folder, /tmp, in memory."""
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for path in (*binds, *DEVICES):
        if os.path.lexists(path):
            bind(path, root + path)
    for name in ("tmp", "proc"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    make_read_only(root)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", f"{root}/tmp", "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={folder_bytes},nr_inodes=4096")
    for path in binds:
        if path.startswith("/tmp/"):  # a Python that lives there, which the folder in memory has covered
            bind(path, root + path)
            make_read_only(root + path)
    os.chdir(root)
    call("syscall", SYS_PIVOT_ROOT[os.uname().machine], ".", ".")
    call("umount2", ".", MNT_DETACH)
    os.chdir("/tmp")
    set_kernel("kernel/shmall", "0")  # shared memory would be a way round the limits on memory


def set_kernel(name: str, value: str) -> None:
    with open(f"/proc/sys/{name}", "w") as file:
        file.write(value)


def drop_uid() -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # changing uid cleared it, and with it the right to write uid_map


def nobody_can_run(python: str) -> bool:
    """False where the interpreter lies in a folder of root's own: then only a root of ours can offer it."""
    os.seteuid(NOBODY)
    try:
        return os.access(python, os.X_OK, effective_ids=True)
    finally:
        os.seteuid(0)


def set_limits(limits: dict[str, Any], processes: bool) -> None:
    values = {
        resource.RLIMIT_CPU: int(limits["seconds"]) + 1,
        resource.RLIMIT_AS: limits["memory"],
        resource.RLIMIT_FSIZE: limits["file"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if processes:
        values[resource.RLIMIT_NPROC] = limits["processes"]
    for which, value in values.items():
        resource.setrlimit(which, (value, value))


def become_program(request: dict[str, Any]) -> None:
    """Replace this process by the program; the working folder is the private one. Returns only by raising."""
    source = os.path.join(os.getcwd(), "main.py")
    with open(source, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(request["source"])
    stdin = os.memfd_create("stdin")
    with os.fdopen(os.dup(stdin), "wb") as file_in:
        file_in.write(request["stdin"].encode("utf-8", "surrogatepass"))
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    arguments = [request["python"], "-I", "-B", "-X", "utf8", "-c", BOOT, source, request["run_name"]]
    os.closerange(3, request["keep_fd"])
    set_limits(request["limits"], processes=not request["weak"])
    os.execve(request["python"], arguments, request["environment"])


def enter(request: dict[str, Any], root: bool) -> None:
    """The child's way from the supervisor's image to the program."""
    os.setsid()
    if request["weak"]:
        os.chdir(request["folder"])
    else:
        build_root(request["folder"], request["binds"], request["limits"]["folder"])
    if root:
        drop_uid()
    if not request["weak"]:
        user, group = os.getuid(), os.getgid()
        call("unshare", NEWUSER)
        map_ids(NOBODY, user, group)
        set_kernel("user/max_user_namespaces", "0")  # one of its own would give the program capabilities again
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    become_program(request)


def start(request: dict[str, Any], root: bool) -> tuple[int, str]:
    """Fork the child; returns its pid and, where it could not become the program, why."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            enter({**request, "keep_fd": writing}, root)
        except Exception as error:  # whatever went wrong before exec, the supervisor must hear of it
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        return pid, pipe.read()


def parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


def children() -> list[int]:
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == os.getpid()]


def kill_all() -> None:
    """End every descendant: orphans come to the supervisor, since it is their subreaper."""
    while remaining := children():
        for pid in remaining:
            os.kill(pid, signal.SIGKILL)
        for pid in remaining:
            os.waitpid(pid, 0)


def supervise(request: dict[str, Any]) -> dict[str, Any]:
    root = os.getuid() == 0 and (not request["weak"] or nobody_can_run(request["python"]))
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if not request["weak"]:
        leave_host(root)
    elif root:
        os.chown(request["folder"], NOBODY, NOBODY)
    begun = time.monotonic()
    pid, refusal = start(request, root)
    if refusal:
        return {"status": "refused", "reason": refusal}
    ended, _, _ = select.select([os.pidfd_open(pid)], [], [], request["limits"]["seconds"])
    seconds = time.monotonic() - begun
    if not ended:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if request["weak"]:
        kill_all()
    return {"status": "exit" if ended else "timeout", "code": code, "seconds": seconds}


def main() -> None:
    status = int(sys.argv[1])
    os.set_inheritable(status, False)
    request = json.load(sys.stdin)
    try:
        outcome = supervise(request)
    except OSError as error:
        outcome = {"status": "refused", "reason": str(error)}
    os.write(status, json.dumps(outcome).encode())


if __name__ == "__main__":
    main()
