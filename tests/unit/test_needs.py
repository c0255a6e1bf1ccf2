# SPDX-License-Identifier: Apache-2.0
"""Nothing is used that only happens to be on this machine; and the check of that sees it."""

import importlib.metadata
import pathlib
import shutil
import tempfile

import testtools

from tools import needs


def _has_nova() -> bool:
    try:
        importlib.metadata.distribution("nova")
        importlib.metadata.distribution("openstack-placement")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class TreeTest(testtools.TestCase):
    @testtools.skipUnless(shutil.which("dpkg-query"), "the owners of programs are asked of dpkg")
    def test_every_program_that_is_started_is_brought_by_bindep(self) -> None:
        self.assertEqual([], needs.unowned_programs())

    @testtools.skipUnless(_has_nova(), "what Nova brings is asked of Nova")
    def test_every_module_that_is_imported_is_required_by_name(self) -> None:
        self.assertEqual([], needs.unrequired_modules())

    def test_the_programs_of_the_back_ends_are_among_those_found(self) -> None:
        """So that a scan that finds nothing is not taken for a tree that needs nothing."""
        found = needs.programs()
        servers = {"etcd", "etcdctl", "mariadbd", "memcached", "postgres", "redis-server"}
        self.assertEqual(set(), servers - found["test"])
        self.assertIn("rabbitmq-server", found["stack"])


class PlantedTest(testtools.TestCase):
    """What no package and no requirement brings is found, wherever it is planted."""

    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        for name in (
            "bindep.txt",
            "requirements.txt",
            "test-requirements.txt",
            "setup.cfg",
            "tools/requirements-stack.txt",
            "tools/requirements-bench.txt",
        ):
            self.write(name, "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    @testtools.skipUnless(
        shutil.which("dpkg-query") and shutil.which("git"), "git is what is planted"
    )
    def test_a_program_that_no_package_brings_is_found(self) -> None:
        for name, text in (
            ("tests/test_planted.py", 'import subprocess\nsubprocess.run(["git", "log"])\n'),
            ("tests/test_planted.py", 'find_program("git")\n'),
            ("tests/test_planted.py", 'PROGRAM = "git"\n'),
            ("nova_nodb_scheduler/testing/planted.py", 'COMMAND = ("git",)\nrun([*COMMAND])\n'),
            ("tools/planted.sh", "#!/bin/bash\nif ! git log; then :; fi\n"),
            ("tools/planted.sh", '#!/bin/bash\nversion="$(git describe)"\n'),
            ("tools/planted.sh", "#!/bin/bash\ntrue && timeout git log\n"),
            ("tools/stack/planted.py", 'processes.start("git", ["/usr/bin/git"])\n'),
        ):
            with self.subTest(text):
                self.write("bindep.txt", "")
                self.write(name, text)
                [finding] = needs.unowned_programs(self.root)
                self.assertIn("git: of package git", finding)
                self.write("bindep.txt", "git [platform:dpkg test stack]\n")
                self.assertEqual([], needs.unowned_programs(self.root))
                (self.root / name).unlink()

    def test_a_word_that_is_no_command_is_none(self) -> None:
        script = "# git log\necho git\nx='git'\ncat <<END\ngit log\nEND\n"
        self.assertEqual({"cat"}, needs.programs_of_shell(script))

    @testtools.skipUnless(_has_nova(), "what Nova brings is asked of Nova")
    def test_a_module_that_no_requirement_names_is_found(self) -> None:
        for name in (
            "nova_nodb_scheduler/store/planted.py",
            "tests/test_planted.py",
            "tools/planted.py",
        ):
            for module in ("numpy", "no_such_module"):
                with self.subTest(f"{module} in {name}"):
                    self.write("requirements.txt", "")
                    self.write(name, f"def late():\n    import {module}.part\n")
                    [finding] = needs.unrequired_modules(self.root)
                    self.assertIn(module.replace("_", "-"), finding.replace("_", "-"))
                    self.assertIn(name, finding)
                    self.write("requirements.txt", f"{module}>=1.0\n")
                    self.assertEqual([], needs.unrequired_modules(self.root))
                    (self.root / name).unlink()

    @testtools.skipUnless(_has_nova(), "what Nova brings is asked of Nova")
    def test_what_nova_brings_is_there_for_the_adapter_only(self) -> None:
        self.write("nova_nodb_scheduler/nova_adapter/planted.py", "import webob\n")
        self.assertEqual([], needs.unrequired_modules(self.root))
        self.write("nova_nodb_scheduler/store/planted.py", "import webob\n")
        self.assertEqual(1, len(needs.unrequired_modules(self.root)))
