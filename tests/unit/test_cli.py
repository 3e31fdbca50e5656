"""The microsim command without a guest: arguments, statuses, what goes where, quick start."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from microsim_vm import scaffold
from microsim_vm.cli import commands as commands_
from microsim_vm.cli import common, copying, output, sandboxes, snapshots, units, wording
from microsim_vm.cli.main import main, parser
from microsim_vm.engines import base, select, trials
from microsim_vm.errors import AgentError, CapacityError, MicrosimError, SeedError, TransferError, VolumeError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MICROSIM_CACHE_DIR", str(folder))
    return folder


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("0", 0),
        ("4096B", 4096),
        ("20G", 20 << 30),
        ("1.5 GiB", 3 << 29),
        ("500m", 500 << 20),
        ("1kB", 1024),
        ("2T", 2 << 40),
    ],
)
def test_sizes_are_read(text: str, bytes_: int) -> None:
    assert units.size(text) == bytes_


@pytest.mark.parametrize("text", ["", "G", "-1", "1X", "1 G G", "ten", "1e3", "20", "1.5"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        units.size(text)


@pytest.mark.parametrize(("text", "mib"), [("512", 512), ("1G", 1024), ("0.5g", 512), ("128MiB", 128)])
def test_memory_is_mib_or_a_size(text: str, mib: int) -> None:
    assert units.memory(128, 65536)(text) == mib


@pytest.mark.parametrize("text", ["0", "127", "64M", "128.5M", "1T", "much"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        units.memory(128, 65536)(text)


def test_an_age_has_a_unit() -> None:
    assert (units.age("7d"), units.age("0")) == (604800, 0)
    with pytest.raises(argparse.ArgumentTypeError, match="it has no unit: write 12h or 7d"):
        units.age("7")


@pytest.mark.parametrize(
    "arguments", [("gc", "--older-than", "7"), ("gc", "--max-size", "20"), ("volume", "create", "v", "--size", "4")]
)
def test_a_number_without_a_unit_says_so(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*arguments) == 2
    assert "it has no unit: write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("90m", 5400), ("12h", 43200), ("7d", 604800), ("1.5d", 129600)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "-1d", "1y", "never", "1M"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a duration"):
        units.duration(text)


def test_a_limit_can_be_never_but_not_nothing() -> None:
    assert units.limit("never") is None
    assert units.limit("1h") == 3600
    with pytest.raises(argparse.ArgumentTypeError, match="no time at all"):
        units.limit("0")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (150 << 20, "150 MiB"), (3 << 40, "3.0 TiB")]
)
def test_sizes_are_shown(count: int, text: str) -> None:
    assert units.size_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7200, "2h"), (172800, "2d")]
)
def test_durations_are_shown(seconds: float, text: str) -> None:
    assert units.duration_text(seconds) == text


def test_tables_are_aligned_and_show_control_characters_as_escapes() -> None:
    shown = output.table(("ID", "WHAT"), [("a-long-id", "x"), ("b", "two\nlines\x1b[2J")])
    assert shown.splitlines() == ["ID         WHAT", "a-long-id  x", "b          two\\nlines\\x1b[2J"]


def test_a_table_without_rows_is_its_header() -> None:
    assert output.table(("ID", "WHAT"), []) == "ID  WHAT"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sb-1:/data/x", ("sb-1", "/data/x")),
        ("sb-1:/a:b", ("sb-1", "/a:b")),
        ("./a:b", (None, "./a:b")),
        ("/a:b", (None, "/a:b")),
        ("folder/a:b", (None, "folder/a:b")),
        ("-", (None, "-")),
    ],
)
def test_places_are_here_or_in_a_sandbox(text: str, expected: tuple[str | None, str]) -> None:
    assert copying.place(text) == expected


@pytest.mark.parametrize("text", ["sb-1:relative", "sb-1:", "sb-1:./x"])
def test_a_path_in_a_sandbox_is_absolute(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("cp", "here", text) == 2
    assert "a path in a sandbox begins with /, such as sb-1:/workspace/" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("a", "b"), ("x:/a", "y:/b")])
def test_cp_needs_one_side_in_a_sandbox(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cp", *arguments]) == 2
    assert "one of SRC and DST" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("v:/data", ("v", "/data", False)), ("v:/data:ro", ("v", "/data", True)), ("v:/data:rw", ("v", "/data", False))],
)
def test_volumes_are_read(text: str, expected: tuple[str, str, bool]) -> None:
    assert sandboxes._volume(text) == expected


@pytest.mark.parametrize("text", ["v", "v:data", ":/data", "v:/data:x"])
def test_what_is_no_volume_is_refused(text: str) -> None:
    assert status_of("create", "cartpole", "--volume", text) == 2


def test_snapshot_id_is_short_for_snapshot_create() -> None:
    assert snapshots.in_full(["snapshot", "sb-1", "--name", "x"]) == ["snapshot", "create", "sb-1", "--name", "x"]
    for whole in (["snapshot", "ls"], ["snapshot", "rm", "x"], ["snapshot", "-h"], ["snapshot"], ["ls"]):
        assert snapshots.in_full(whole) == whole


@pytest.mark.parametrize("verb", ["exec", "shell"])
@pytest.mark.parametrize(
    "words",
    [
        ["sb-1", "--user", "sim", "--env", "A=b=c", "--", "sh", "-c", "exit 3"],
        ["sb-1", "--user", "sim", "--env=A=b=c", "sh", "-c", "exit 3"],
        ["--user", "sim", "sb-1", "--env", "A=b=c", "sh", "-c", "exit 3"],
        ["--user=sim", "--env", "A=b=c", "sb-1", "sh", "-c", "exit 3"],
        ["--user=sim", "--env", "A=b=c", "--", "sb-1", "sh", "-c", "exit 3"],
    ],
)
def test_a_command_begins_with_the_first_word_after_the_id(verb: str, words: list[str]) -> None:
    args = parser().parse_args([verb, *words])
    assert (args.id, args.user, args.words) == ("sb-1", "sim", ["sh", "-c", "exit 3"])
    assert common.pairs(args.env) == {"A": "b=c"}


@pytest.mark.parametrize(
    "words",
    [["ls", "-la", "/workspace"], ["git", "checkout", "--", "file"], ["x", "--user", "y", "--json"], ["--help"],
     ["--", "x"], ["-"]],
)  # fmt: skip
def test_a_command_keeps_all_its_words(words: list[str]) -> None:
    for before in (["--"], [] if words[0][:2] != "--" else ["--"]):
        args = parser().parse_args(["exec", "sb-1", *before, *words])
        assert (args.id, args.words, args.user, args.json) == ("sb-1", words, None, False)


def test_a_shell_needs_no_command() -> None:
    args = parser().parse_args(["shell", "sb-1", "--user", "sim"])
    assert (args.id, args.user, args.words) == ("sb-1", "sim", [])


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("exec: [Errno 2] No such file or directory: 'it'", (127, "it: not found in the sandbox")),
        ("exec: [Errno 13] Permission denied: 'it'", (126, "it: cannot be executed in the sandbox: Permission denied")),
        ("exec: [Errno 8] Exec format error: 'it'", (126, "it: cannot be executed in the sandbox: Exec format error")),
        ("exec: [Errno 2] No such file or directory: '/cwd'", None),
        ("exec: the guest has no user 'it'", None),
    ],
)
def test_programs_that_are_not_run_end_as_in_a_shell(what: str, expected: tuple[int, str] | None) -> None:
    assert commands_.not_run(AgentError(what), "it") == expected


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("a larger pool: --microsim-subnets, or MICROSIM_SUBNETS", "a larger pool: the variable MICROSIM_SUBNETS"),
        ("another range: --microsim-subnets 10.213.0.0/16, or MICROSIM_SUBNETS",
         "another range: the variable MICROSIM_SUBNETS=10.213.0.0/16"),
        ("give a larger pool: --microsim-subnets", "give a larger pool: the variable MICROSIM_SUBNETS"),
        ("another place with --microsim-cache-dir", "another place with --cache-dir"),
    ],
)  # fmt: skip
def test_hints_name_what_can_be_typed(hint: str, expected: str) -> None:
    assert wording.in_words(hint) == expected


def test_choices_are_those_of_the_engines() -> None:
    assert (common.ENGINES, common.ACCELERATORS) == (select.ENGINES, select.ACCELERATORS)
    assert common.ISOLATIONS == base.ISOLATIONS


@pytest.mark.parametrize(
    "arguments",
    [(), ("nonsense",), ("exec", "sb-1"), ("create", "--ttl", "soon"), ("gc", "--max-size", "big"), ("snapshot",),
     ("create", "--metadata", "x"), ("create", "--vcpus", "0"), ("create", "--memory", "1T"), ("fork", "x", "-n", "0"),
     ("warm",), ("ls", "--js"), ("import", "/does/not/exist", "--name", "bad name!"), ("exec", "sb-1", "--"),
     ("snapshot", "sb-1", "--name", "../x"), ("exec", "sb-1", "-la"), ("exec", "--", "ls")],
)  # fmt: skip
def test_wrong_arguments_end_with_2(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(*arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("exec", "nobody", "-n", "--", "true"), "no sandbox 'nobody'"),
        (("logs", "nobody"), "no sandbox 'nobody'"),
        (("rm", "nobody"), "no sandbox 'nobody'"),
        (("snapshot", "rm", "nothing"), "no saved snapshot 'nothing'"),
        (("fork", "nobody"), "neither a sandbox nor a saved snapshot 'nobody'"),
        (("export", "nobody", "file"), "neither a saved snapshot nor a sandbox 'nobody'"),
        (("export", "nobody", "/"), "microsim: / is a folder"),
        (("export", "nobody", "/no/such/file"), "/no/such/file cannot be written: there is no folder /no/such"),
        (("export", "nobody", "/dev/null"), "/dev/null is no regular file"),
        (("import", "/does/not/exist"), "/does/not/exist: No such file or directory"),
        (("bake", "no-such-template"), "there is no template 'no-such-template'"),
        (("create", "cartpole", "--from-snapshot", "x"), "has its template, machine and volumes in it"),
        (("fork", "x", "-n", "2", "--seed", "1"), "--seed is for one child"),
        (("volume", "rm", "nothing"), "no volume 'nothing'"),
    ],
)
def test_errors_are_said_on_stderr_and_end_with_1(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert said in shown.err
    assert "Traceback" not in shown.err
    assert shown.out in ("", "\n")


@pytest.mark.parametrize("arguments", [("ls",), ("snapshot", "ls"), ("volume", "ls"), ("ls", "-q")])
def test_empty_lists_are_json_too(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_cache_folder_that_is_not_there_is_a_typing_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typo = tmp_path / "typo"
    for arguments in (["ls"], ["gc"], ["rm", "sb-1"], ["volume", "ls"], ["exec", "sb-1"]):
        assert status_of(*arguments, "--cache-dir", str(typo), *(["true"] if arguments[0] == "exec" else [])) == 2
        assert f"there is no folder {typo}" in capsys.readouterr().err
    assert not typo.exists()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (MicrosimError("x", hint="call resume() first"), "run microsim resume ID first"),
        (VolumeError("x", hint="make it first: Volume.create(name, size_mib)"),
         "make it first: microsim volume create NAME --size 512M"),
        (TransferError("x", hint="name less, or allow more with max_bytes"), "or allow more with --max-size"),
        (MicrosimError("x", hint="run once without --microsim-locked"), "run once without --locked"),
        (MicrosimError("no lock, and --microsim-locked was given"), "and --locked was given"),
        (SeedError("x", hint="pass seed=..., or mark the test with @pytest.mark.seeds(range(64))"), "give --seed\n"),
        (CapacityError("x", hint="lower machine.memory_mib in the template, or give the machine more memory"),
         "lower the memory (--memory of create, or machine.memory_mib in the template), or give"),
        (AgentError("x", details="resume() of max_bytes"), "  | resume() of max_bytes"),
    ],
)  # fmt: skip
def test_errors_speak_of_what_is_typed_here(
    error: MicrosimError, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.Output().failure(error)
    assert shown in capsys.readouterr().err


def test_every_command_has_json_but_for_scripts_and_terminals() -> None:
    without = {name for name, command in commands(parser(), "") if "--json" not in command.format_help()}
    assert without == {"shell", "completion"}


def commands(top: argparse.ArgumentParser, prefix: str) -> list[tuple[str, argparse.ArgumentParser]]:
    found = []
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                found += commands(command, f"{prefix}{name} ") or [(f"{prefix}{name}", command)]
    return found


def test_every_argument_is_explained() -> None:
    for name, command in commands(parser(), ""):
        assert command.description, name
        for action in command._actions:
            assert action.help or action.choices, f"{name} {action.dest}"


def test_help_imports_nothing_slow() -> None:
    script = (
        "import sys; from microsim_vm.cli.main import parser; parser().format_help(); "
        "print(*sorted({'msgspec', 'yaml', 'psutil', 'zstandard', 'shtab', 'filelock', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == ""


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "microsim_vm", "--version"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.startswith("microsim ")


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete"), ("zsh", "#compdef microsim")])
def test_completion_prints_a_script(shell: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert word in script
    assert "hibernate" in script


def test_bash_completes_commands_and_options() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "microsim_vm", "completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    ask = (
        'COMP_WORDS=(microsim %s); COMP_CWORD=%d; $(complete -p microsim | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        'echo "${COMPREPLY[@]}"'
    )
    for words, at, expected in (("hib", 1, "hibernate"), ("gc --dry", 2, "--dry-run"), ("snapshot ''", 2, "rm")):
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{ask % (words, at)}"], capture_output=True, text=True, check=True, timeout=30
        )
        assert expected in done.stdout.split(), done


def test_bash_completes_names_of_what_there_is(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "microsim").write_text(f'#!/bin/sh\nexec {sys.executable} -m microsim_vm "$@"\n')
    (tmp_path / "microsim").chmod(0o755)
    assert main(["volume", "create", "results", "--size", "16M"]) == 0
    ask = (
        'eval "$(microsim completion bash)"; COMP_WORDS=(microsim volume rm re); COMP_CWORD=3; '
        '$(complete -p microsim | sed "s/.*-F \\([^ ]*\\).*/\\1/"); echo "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", ask], env=environment, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["results"], done.stderr


def test_init_writes_a_project_and_says_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / "new"), "--name", "arm", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert {os.path.relpath(path, tmp_path / "new") for path in written} == set(scaffold.files("arm"))
    assert "microsim_world = arm" in (tmp_path / "new" / "pytest.ini").read_text()


def test_init_overwrites_nothing_and_writes_nothing_where_it_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert main(["init", str(tmp_path)]) == 1
    assert f"not overwritten: {tmp_path / 'pytest.ini'}" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pytest.ini"]


def test_init_refuses_a_name_that_no_template_can_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path), "--name", "../x"]) == 1
    assert "cannot be the name" in capsys.readouterr().err


def test_doctor_tries_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TIMEOUT_S", 2.0)  # one platform may hang, and is waited for
    status = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    findings = {finding["name"]: finding for finding in document["findings"]}
    assert {"qemu", "kvm", "memory of guests", "space", "memory"} <= set(findings)
    assert {"network", "network of several", "network capture", "subnets"} <= set(findings)
    assert {"mmdebstrap", "mkfs.erofs", "mkfs.ext4", "setpriv"} <= set(findings)
    assert {"gvisor (systrap)", "gvisor (ptrace)", "gvisor (kvm)", "engine"} <= set(findings)
    assert "each with 512 MiB of its own" in findings["memory"]["detail"]
    assert document["ok"] is all(each["state"] == "ok" for each in findings.values() if each["required"])
    assert status == (0 if document["ok"] else 1)


def test_doctor_says_how_to_install_what_is_missing_and_does_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("apt-get", "sudo"):
        (bin_folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/asked\n')
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin_folder))
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "Something that is required does not work." in shown
    assert "apt-get install --no-install-recommends cpio dpkg erofs-utils mmdebstrap qemu-system-x86" in shown
    assert not (tmp_path / "asked").exists()
    assert main(["doctor", "--fix"]) == 1  # nothing was installed
    asked = (tmp_path / "asked").read_text()
    assert "apt-get install --yes --no-install-recommends" in asked
    assert "qemu-system-x86" in asked
    capsys.readouterr()


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    # Opening a FIFO waits for a writer: there Ctrl-C comes.
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "microsim_vm", "import", str(fifo)], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process:
        assert "importing" in process.stderr.readline()
        process.send_signal(2)
        assert process.wait(10) == 130
        assert process.stderr.read() == "microsim: interrupted\n"


def test_ctrl_c_before_the_command_is_known_is_silent() -> None:
    script = (
        "import os, signal, sys; from microsim_vm.cli import main\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'microsim_vm.cli.doctor': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "main.main(['ls'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_entry_point_imports_nothing_of_the_rest() -> None:
    script = (
        "import sys; import microsim_vm.cli.main; "
        "print(*sorted(name for name in sys.modules if name.startswith('microsim_vm.') or name == 'argparse'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["microsim_vm.cli", "microsim_vm.cli.main"]


def test_a_reader_that_has_seen_enough_is_no_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m microsim_vm completion zsh | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stderr == ""
