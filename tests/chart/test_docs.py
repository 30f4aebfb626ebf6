"""docs/kubernetes.md: its values render, its commands run, and its names are those of the chart."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import yaml

import chart

TEXT = (chart.ROOT / "docs/kubernetes.md").read_text()
NEEDS_A_CLUSTER = "<!-- needs a cluster -->\n"


def blocks(language):
    """Fenced blocks of a language that need no cluster, and those that do."""
    found = re.findall(rf"({NEEDS_A_CLUSTER})?```{language}\n(.*?)```", TEXT, flags=re.S)
    return [text for marked, text in found if not marked], [text for marked, text in found if marked]


class Docs(unittest.TestCase):
    def test_every_example_of_values_is_rendered(self):
        examples, _ = blocks("yaml")
        self.assertGreaterEqual(len(examples), 3)
        for text in examples:
            self.assertTrue(chart.manifests(yaml.safe_load(text)))

    def test_every_command_that_needs_no_cluster_runs(self):
        commands, marked = blocks("sh")
        self.assertTrue(commands and marked)
        programs = pathlib.Path(os.environ["FLOTILLA_AGENT"]).parent
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FLOTILLA_CACHE_DIR": "/dev/null"}
        with tempfile.TemporaryDirectory() as folder:
            model = chart.ROOT / "inference-core/demo-model/flotilla-demo.gguf"
            (pathlib.Path(folder) / "model.gguf").symlink_to(model)
            for text in commands:
                done = subprocess.run(["bash", "-euc", text], cwd=folder, env=env, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, (text, done.stderr))

    def test_names_in_it_are_those_of_an_install_as_it_says(self):
        values = yaml.safe_load(blocks("yaml")[0][0])
        rendered = chart.loaded().render(values=values, name="flotilla", namespace="inference")
        everything = "\n".join(rendered.values())
        for name in ("flotilla-api-keys", "flotilla-nodes.inference.svc", "name: flotilla-gateway\n"):
            self.assertIn(name, everything)
        for name in re.findall(r"deploy/(\S+)", TEXT):
            self.assertIn(f"kind: Deployment\nmetadata:\n  name: {name}\n", everything)


if __name__ == "__main__":
    unittest.main()
