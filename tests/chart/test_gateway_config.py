"""Every configuration that is rendered is one that the gateway takes, with the files that the pod has."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import chart
from files import Cluster, certificate, within

FOLDERS = ["/etc/flotilla/", "/run/node/", "/var/lib/flotilla/"]


def secrets(folder):
    """What the value sets say that somebody has made."""
    made = certificate(folder)
    return {
        "fleet-secrets": {"join": "a-join-key-for-tests-only", "admin": "an-operators-key-for-tests"},
        "fleet-ca": made,
        "public-cert": made,
        "admin-cert": made,
        "node-cert": made,
        "gpu-endpoint": {"key": "sk-gpu"},
        "store": {"store.keys": "ab" * 32, "postgres.url": "postgres://flotilla:password@db/flotilla"},
        "node-port": {"node.key": "sk-node"},
        "tenants": {"keys.yaml": f"keys:\n  - name: app\n    sha256: {'ab' * 32}\n"},
    }


def check(config):
    done = subprocess.run([os.environ["FLOTILLA_GATEWAY"], "check", "--config", config], capture_output=True, text=True)
    return done.returncode, done.stderr


class GatewayConfig(unittest.TestCase):
    def test_the_gateway_takes_every_configuration(self):
        checked = 0
        with tempfile.TemporaryDirectory() as folder:
            given = secrets(folder)
            for name, values in chart.value_sets():
                objects = chart.manifests(values)
                for one in chart.of_kind(objects, "Deployment"):
                    spec = one["spec"]["template"]["spec"]
                    root = pathlib.Path(folder) / name
                    Cluster(objects, given).mount(spec, spec["containers"][0], root)
                    config = root / "etc/flotilla/config/gateway.yaml"
                    config.write_text(within(config.read_text(), root, FOLDERS))
                    self.assertEqual(check(config), (0, ""), name)
                    checked += 1
                    # It looks at the files: without them it says what is missing.
                    if name == "05-gpu-overflow":
                        (root / "etc/flotilla/secrets/gpu/key").unlink()
                        code, said = check(config)
                        self.assertEqual(code, 64)
                        self.assertIn("external[0].key_file", said)
        self.assertEqual(checked, len(chart.value_sets()) - 1)


if __name__ == "__main__":
    unittest.main()
