"""The pods of the chart do what they are for: their commands, with their files, run here."""

import pathlib
import subprocess
import sys
import unittest

import chart

OWN = ["unshare", "--mount", "--net", "--propagation", "private"]


def namespaces():
    """How to get a network and a file system of one's own; None where nobody lets us."""
    for more in ([], ["--user", "--map-root-user"]):
        if subprocess.run([*OWN, *more, "true"], capture_output=True).returncode == 0:
            return [*OWN, *more]
    return None


class Pods(unittest.TestCase):
    def test_gateway_and_agent_come_up_as_rendered_answer_and_take_over_a_new_key(self):
        own = namespaces()
        if own is None:
            self.skipTest("fixed ports and names of Services need namespaces of their own")
        script = pathlib.Path(chart.HERE) / "pods.py"
        done = subprocess.run([*own, sys.executable, script], capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("The capital of France is Paris.", done.stdout)


if __name__ == "__main__":
    unittest.main()
