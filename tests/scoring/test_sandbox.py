"""The promises of the sandbox, each tried from the inside (as root in CI: uid and files are tested hardest)."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import pytest

from sawbench.core.errors import UserError
from sawbench.core.progress import silent
from sawbench.scoring import sandbox as module
from sawbench.scoring.sandbox import Limits, Outcome, Program, Sandbox, SandboxRefused

strict = pytest.mark.skipif(module.refusal("strict") is not None, reason="this machine forbids namespaces")


def run(
    source: str, stdin: str = "", mode: module.Mode = "strict", run_name: str = "__main__", **limits: float
) -> Outcome:
    return Sandbox(mode, Limits(**{"seconds": 5.0, **limits})).run(Program(source, stdin, run_name))  # type: ignore


@strict
class TestStrict:
    def test_runs_code_and_hands_back_both_streams(self) -> None:
        outcome = run("import sys; print(input()[::-1]); sys.stderr.write('aside')", stdin="hello")
        assert (outcome.status, outcome.code, outcome.stdout, outcome.stderr) == ("exit", 0, "olleh\n", "aside")

    def test_reports_how_code_failed(self) -> None:
        assert run("raise ValueError('no')").error == "exit code 1: ValueError: no"
        assert run("import os; os._exit(3)").error == "exit code 3: no message"

    def test_leaves_the_main_block_out_on_request(self) -> None:
        program = Program("print(1)\nif __name__ == '__main__': print(2)", run_name="solution")
        assert Sandbox().run(program).stdout == "1\n"

    def test_cannot_reach_a_server_on_the_loopback(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            outcome = run(f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)")
            server.settimeout(0.1)
            with pytest.raises(TimeoutError):
                server.accept()
        assert outcome.code == 1
        assert "Network is unreachable" in outcome.error

    def test_cannot_reach_an_abstract_socket(self) -> None:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("\0sawbench-test")
            server.listen()
            outcome = run("import socket; socket.socket(socket.AF_UNIX).connect('\\0sawbench-test')")
        assert "ConnectionRefusedError" in outcome.error

    @pytest.mark.parametrize("mode", [0o600, 0o644])
    def test_cannot_read_files_of_ours(self, tmp_path: Path, mode: int) -> None:
        secret = tmp_path / "secret"
        secret.write_text("token")
        secret.chmod(mode)
        assert "FileNotFoundError" in run(f"print(open({str(secret)!r}).read())").error

    def test_cannot_read_the_password_file(self) -> None:
        assert run("print(open('/etc/shadow').read())").code == 1

    @pytest.mark.parametrize("folder", ["/", "/usr", "/dev", "/dev/shm", "/etc", "/var/tmp", sys.prefix])
    def test_cannot_write_outside_its_folder(self, folder: str) -> None:
        path = Path(folder) / "sawbench-was-here"
        assert run(f"open({str(path)!r}, 'w')").code == 1
        assert not path.exists()

    def test_its_folder_is_writable_and_gone_afterwards(self) -> None:
        source = "open('mark', 'w').write('x'); print(open('/tmp/mark').read())"
        assert run(source).stdout == "x\n"
        assert not Path("/tmp/mark").exists()
        python = {Path(bound).parts[2] for bound in module._binds() if bound.startswith("/tmp/")}
        assert run("import os; print(sorted(os.listdir('.')))").stdout == f"{sorted({'main.py', *python})}\n"

    def test_sees_no_process_but_its_own(self) -> None:
        assert run("import os; print([p for p in os.listdir('/proc') if p.isdigit()])").stdout == "['1']\n"
        assert "ProcessLookupError" in run(f"import os; os.kill({os.getpid()}, 0)").error

    def test_inherits_no_secret_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("API_TOKEN", "hunter2")
        assert run("import os; print(os.environ.get('API_TOKEN'))").stdout == "None\n"
        everything = "print(open('/proc/self/environ').read())"
        assert "hunter2" not in run(everything).stdout

    def test_has_neither_root_nor_capabilities_and_cannot_get_them(self) -> None:
        source = "import os; print(os.getuid() != 0, [l for l in open('/proc/self/status') if l.startswith('CapEff')])"
        assert run(source).stdout == "True ['CapEff:\\t0000000000000000\\n']\n"
        assert run("import os; os.setuid(0)").code == 1

    def test_cannot_make_namespaces_of_its_own(self) -> None:
        """In a user namespace it would be root again, with all that the kernel lets root try."""
        libc = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        assert run(libc + "print(libc.unshare(0x10000000), ctypes.get_errno())").stdout == "-1 28\n"  # ENOSPC

    def test_shared_memory_is_no_way_round_the_limit(self) -> None:
        libc = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        assert run(libc + "print(libc.shmget(0, ctypes.c_size_t(1 << 20), 0o1600))").stdout == "-1\n"

    def test_ends_at_the_limit_though_it_ignores_signals_and_forks(self) -> None:
        source = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(987)
time.sleep(987)
"""
        begun = time.monotonic()
        outcome = run(source, seconds=1.0, run_name="limit-strict")
        assert outcome.error == "time limit"
        assert time.monotonic() - begun < 5
        assert not leftovers("limit-strict")

    def test_takes_its_children_along_when_it_ends_early(self) -> None:
        source = "import os, time\nif os.fork() == 0:\n  os.setsid(); time.sleep(987)"
        assert run(source, run_name="early-strict").status == "exit"
        assert not leftovers("early-strict")

    def test_a_fork_bomb_stays_small(self) -> None:
        source = "import os, time\nn = 0\ntry:\n  while True:\n    if os.fork() == 0: time.sleep(9)\n    n += 1\n"
        outcome = run(source + "except OSError: print(n)", processes=8)
        assert outcome.status == "exit"
        assert int(outcome.stdout) < 8

    def test_memory_is_bounded(self) -> None:
        assert "MemoryError" in run("x = bytearray(1 << 29)", memory=1 << 28).error

    def test_files_and_output_are_bounded(self) -> None:
        assert "File too large" in run("open('big', 'w').write('x' * 200_000)", file=100_000).error
        loud = run("import sys\nwhile True: sys.stdout.write('x' * 1000)", file=100_000)
        assert loud.code != 0
        assert len(loud.stdout) <= 100_000
        full = run("for i in range(99): open(str(i), 'w').write('x' * 90_000)", file=100_000, folder=1 << 20)
        assert "No space left" in full.error

    def test_many_run_together_in_order(self) -> None:
        programs = [Program(f"import time; time.sleep({0.2 if i == 0 else 0}); print({i})") for i in range(8)]
        outcomes = Sandbox().run_many(programs, silent, workers=4)
        assert [o.stdout for o in outcomes] == [f"{i}\n" for i in range(8)]

    def test_strange_text_arrives_whole(self) -> None:
        assert run("print(input() == '\\u2028π\\x00é', 'π')", stdin="\u2028π\x00é").stdout == "True π\n"

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
    def test_an_ordinary_user_is_isolated_as_well(self, tmp_path: Path) -> None:
        """With the system's Python and our two files, since a stranger may not be able to read this environment."""
        source = (
            "from sawbench.scoring.sandbox import Sandbox, Program; import json;"
            "print(Sandbox().run(Program('import os; print(os.getuid(), os.listdir(\"/proc/1\") != [])')).stdout)"
        )
        python = next((p for p in ("/usr/bin/python3", "/usr/local/bin/python3") if usable(p)), None)
        if python is None:
            pytest.skip("no system Python that can import the package's two files")
        found = subprocess.run(
            [python, "-c", source], user=65534, group=65534, extra_groups=[], capture_output=True, text=True,
            check=True, env={"PYTHONPATH": str(Path(module.__file__).parents[2])}, cwd="/",
        )  # fmt: skip
        assert found.stdout.strip() == "65534 True"


def usable(python: str) -> bool:
    """An interpreter of at least 3.11 with which ``nobody`` can read the sandbox's source."""
    if not Path(python).exists():
        return False
    source = f"import sys; open({module.__file__!r}); sys.exit(sys.version_info < (3, 11))"
    return subprocess.run([python, "-c", source], user=65534, stderr=subprocess.DEVNULL).returncode == 0


def leftovers(run_name: str) -> list[int]:
    """Programs still running under this name, which is the last of their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if line.endswith(f"main.py\0{run_name}\0".encode()):
            found.append(int(path.parent.name))
    return found


class TestWeak:
    def test_runs_and_states_the_mode_and_the_uid(self) -> None:
        assert run("print(1)", mode="weak").stdout == "1\n"
        described = Sandbox("weak").describe()
        assert described["sandbox"] == "weak"
        assert str(described["uid"]) == run("import os; print(os.getuid())", mode="weak").stdout.strip()

    def test_kills_descendants_at_the_limit(self) -> None:
        source = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        source += "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(987)\ntime.sleep(987)"
        assert run(source, mode="weak", seconds=1.0, run_name="limit-weak").error == "time limit"
        assert not leftovers("limit-weak")

    def test_memory_is_bounded(self) -> None:
        assert "MemoryError" in run("x = bytearray(1 << 29)", mode="weak", memory=1 << 28).error


@strict
def test_a_python_below_tmp_is_found_and_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own folder is /tmp: what lies there of the interpreter must still be seen, read-only."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        venv.create(folder, symlinks=True)
        monkeypatch.setattr(sys, "executable", f"{folder}/bin/python")
        monkeypatch.setattr(sys, "prefix", folder)
        assert run(f"import sys; print(sys.prefix == {folder!r}); open('x', 'w')").stdout == "True\n"
        assert "Read-only file system" in run(f"open({folder!r} + '/pyvenv.cfg', 'w')").error


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match=r"task\.sandbox=loose is not one of: strict, weak"):
        Sandbox("loose")  # type: ignore[arg-type]


def test_a_machine_without_namespaces_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"status": "refused", "reason": "unshare: Operation not permitted"}
    monkeypatch.setattr(module, "_supervise", lambda *_: answer)
    module._probe.cache_clear()
    with pytest.raises(SandboxRefused) as caught:
        Sandbox().check()
    module._probe.cache_clear()
    assert str(caught.value) == (
        "task.sandbox=strict is not possible on this machine (unshare: Operation not permitted); "
        "task.sandbox=weak isolates less, later leaves it to rescore"
    )


def test_a_supervisor_that_dies_leaves_nothing_running() -> None:
    """The program goes with it, though it would have slept on."""
    source = (
        "from sawbench.scoring.sandbox import Sandbox, Program, Limits;"
        "Sandbox('strict', Limits(seconds=60)).run(Program('import time; time.sleep(987)', run_name='orphan'))"
    )
    if module.refusal("strict") is not None:
        pytest.skip("this machine forbids namespaces")
    parent = subprocess.Popen([sys.executable, "-c", source])
    deadline = time.monotonic() + 10
    while not leftovers("orphan") and time.monotonic() < deadline:
        time.sleep(0.05)  # processes of another tree: nothing but /proc tells of them
    assert leftovers("orphan")
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while leftovers("orphan") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not leftovers("orphan")
