"""docs/kubernetes.md: its values render, its commands run, its manifests are valid, and its names are those
of the chart. So are the names in NOTES.txt."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest
from urllib.parse import urlsplit

import yaml

import chart
from test_manifests import check_custom

TEXT = (chart.ROOT / "docs/kubernetes.md").read_text()
NEEDS_MORE = r"<!-- needs a (?:cluster|registry) -->\n"


def blocks(language):
    """Fenced blocks of a language that need no cluster, and those that do."""
    found = re.findall(rf"({NEEDS_MORE})?```{language}\n(.*?)```", TEXT, flags=re.S)
    return [text for marked, text in found if not marked], [text for marked, text in found if marked]


def examples():
    """Values for the chart."""
    return [yaml.safe_load(text) for text in blocks("yaml")[0] if "apiVersion:" not in text]


def manifests(kind):
    """Objects of the page, for others than the chart."""
    found = [one for text in blocks("yaml")[0] if "apiVersion:" in text for one in yaml.safe_load_all(text)]
    return [one for one in found if one["kind"] == kind]


def rendered(values):
    """Every object of a release with the page's names."""
    texts = chart.loaded().render(values=values, name="flotilla", namespace="inference")
    return chart.parsed(texts)


def mounted(objects):
    """Secrets of pods: name, keys that they need (none: all), and whether they may be absent."""
    for _, _, spec in chart.pod_specs(objects):
        for volume in spec.get("volumes", []):
            if secret := volume.get("secret"):
                keys = {item["key"] for item in secret.get("items", [])}
                yield secret["secretName"], keys, secret.get("optional", False)


class Docs(unittest.TestCase):
    def test_every_example_of_values_is_rendered(self):
        self.assertGreaterEqual(len(examples()), 5)
        for values in examples():
            self.assertTrue(chart.manifests(values))

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
        texts = chart.loaded().render(values=examples()[0], name="flotilla", namespace="inference")
        everything = "\n".join(texts.values())
        for name in ("flotilla-api-keys", "flotilla-nodes.inference.svc", "name: flotilla-gateway\n"):
            self.assertIn(name, everything)
        for name in re.findall(r"deploy/(\S+)", TEXT):
            self.assertIn(f"kind: Deployment\nmetadata:\n  name: {name}\n", everything)

    def test_its_manifests_are_what_their_definitions_say(self):
        custom = [one for kind in ("Application", "ExternalSecret", "Certificate") for one in manifests(kind)]
        self.assertEqual(len(custom), 4)
        check_custom(self, custom)

    def test_an_application_of_argo_cd_renders_the_same_each_time_and_external_secrets_bring_its_keys(self):
        [application] = manifests("Application")
        self.assertEqual((application["metadata"]["name"], application["spec"]["source"]["chart"]), ("flotilla",) * 2)
        self.assertEqual(application["spec"]["source"]["targetRevision"], chart.loaded().version)
        self.assertEqual(application["spec"]["destination"]["namespace"], "inference")
        values = application["spec"]["source"]["helm"]["valuesObject"]
        objects = rendered(values)
        self.assertEqual(objects, rendered(values))
        self.assertFalse(chart.of_kind(objects, "Secret"))
        # What changes at each rendering is only the Secret of generated keys.
        generated = {**values, "join": {}, "admin": {}}
        first, second = rendered(generated), rendered(generated)
        changed = [one["kind"] for one, other in zip(first, second, strict=True) if one != other]
        self.assertEqual(changed, ["Secret"])

        brought = {}
        for one in manifests("ExternalSecret"):
            self.assertEqual(one["metadata"]["namespace"], "inference")
            brought[one["spec"]["target"]["name"]] = {data["secretKey"] for data in one["spec"]["data"]}
        needed = {name: set() for name, _, _ in mounted(objects)}
        for name, keys, _ in mounted(objects):
            needed[name] |= keys
        self.assertEqual(needed, brought)

    def test_a_certificate_of_cert_manager_has_the_names_by_which_nodes_and_clients_reach_the_gateway(self):
        [certificate] = manifests("Certificate")
        [values] = [one for one in examples() if one.get("join", {}).get("caSecret")]
        objects = rendered(values)
        named = [name for name, keys, _ in mounted(objects) if not keys]
        self.assertEqual(set(named), {certificate["spec"]["secretName"]})
        names = set(certificate["spec"]["dnsNames"])
        [agent] = chart.of_kind(objects, "StatefulSet")
        args = agent["spec"]["template"]["spec"]["containers"][0]["args"]
        [url] = [urlsplit(arg.removeprefix("--join=")) for arg in args if arg.startswith("--join=")]
        self.assertEqual((url.scheme, url.hostname in names), ("https", True))
        self.assertIn("--join-ca-file=/etc/flotilla/ca/ca.crt", args)
        self.assertIn("flotilla.inference.svc", names)
        self.assertIn("flotilla", [one["metadata"]["name"] for one in chart.of_kind(objects, "Service")])

    def test_the_notes_name_what_is_there(self):
        for name, values in chart.value_sets():
            notes = chart.templates(values)["flotilla/templates/NOTES.txt"]
            objects = chart.manifests(values)
            ids = {(one["kind"], one["metadata"]["name"]) for one in objects}
            ports = {}
            for one in chart.of_kind(objects, "Service"):
                ports[one["metadata"]["name"]] = [port["port"] for port in one["spec"].get("ports", [])]
            for kind, word in (("Deployment", "deploy"), ("Service", "svc")):
                for found in re.findall(rf"\b{word}/(\S+)", notes):
                    self.assertIn((kind, found), ids, name)
            for service, port in re.findall(r"port-forward svc/(\S+) 8080:(\d+)", notes):
                self.assertIn(int(port), ports[service], name)
            for scheme, service, port in re.findall(r"(https?)://([a-z0-9-]+)\.inference\.svc:(\d+)", notes):
                self.assertIn(int(port), ports[service], name)
                self.assertEqual(scheme == "https", "tls" in values.get("gateway", {}).get("config", {}), name)
            secrets = {one: keys for one, keys, _ in mounted(objects)}
            for secret, file in re.findall(r"create secret generic (\S+) --from-file=(\S+)", notes):
                self.assertEqual(secrets[secret], {file.split("=")[0]}, name)
            for secret in re.findall(r"The Secret (\S+) contains", notes):
                self.assertIn(("Secret", secret), ids, name)
            gateway = values.get("gateway", {}).get("enabled", True)
            self.assertEqual("Send a request" in notes, gateway, name)
            self.assertEqual("generated" in notes, bool(chart.of_kind(objects, "Secret")), name)


if __name__ == "__main__":
    unittest.main()
