"""Values: what is refused and how, and that the schema says what the binaries do."""

import json
import os
import re
import subprocess
import tomllib
import unittest

import yaml
from helm_python import HelmError

import chart

# What the chart itself says to 'flotilla-agent serve'.
OF_THE_CHART = {
    "model", "model-name", "listen", "key-file", "name", "help",
    "join", "join-key", "join-key-file", "join-ca-file", "join-cert-file", "join-cert-key-file",
}


def reference():
    """configs/gateway.yaml with every key that it shows."""
    text = (chart.ROOT / "configs/gateway.yaml").read_text()
    return yaml.safe_load(re.sub(r"^(\s*)#(?=[^ #\n])", r"\1", text, flags=re.M))


def with_one_certificate(config, *, acme):
    """A listener has a certificate in files or from an ACME server, and the reference shows both."""
    tls = config["tls"]
    return {**config, "tls": {key: one for key, one in tls.items() if (key == "acme") == acme}}


def with_absolute_files(value, key=""):
    if isinstance(value, dict):
        return {key: with_absolute_files(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [with_absolute_files(one) for one in value]
    is_path = key.endswith(("_file", "_dir")) or key == "dir"
    return f"/files/{value}" if is_path else value


def leaves(value, path=""):
    """Paths of keys, with [] for items of lists. A map of names is one key."""
    if isinstance(value, dict) and path.split(".")[-1] not in ("aliases", "models"):
        for key, one in value.items():
            yield from leaves(one, f"{path}.{key}".strip("."))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from leaves(value[0], f"{path}[]")
    else:
        yield path


class Values(unittest.TestCase):
    maxDiff = None

    def resolve(self, schema):
        name = schema.get("$ref", "").removeprefix("#/definitions/")
        return self.schema["definitions"][name] if name else schema

    def schema_leaves(self, schema, path=""):
        schema = self.resolve(schema)
        if "properties" in schema:
            for key, one in schema["properties"].items():
                yield from self.schema_leaves(one, f"{path}.{key}".strip("."))
        elif "properties" in self.resolve(schema.get("items", {})):
            yield from self.schema_leaves(schema["items"], f"{path}[]")
        else:
            yield path

    def setUp(self):
        self.schema = json.loads((chart.PATH / "values.schema.json").read_text())

    def test_what_cannot_work_is_refused_with_the_key_that_is_wrong(self):
        files = sorted((chart.HERE / "invalid").glob("*.yaml"))
        self.assertGreaterEqual(len(files), 10)
        for file in files:
            text = file.read_text()
            expected = text.splitlines()[0].removeprefix("# ")
            with self.subTest(file.stem):
                with self.assertRaises(HelmError) as refused:
                    chart.templates(yaml.safe_load(text))
                self.assertIn(expected, str(refused.exception))

    def test_no_part_of_the_schema_takes_unknown_keys(self):
        closed = open_ = 0

        def walk(schema, path):
            nonlocal closed, open_
            if schema.get("type") == "object":
                further = schema.get("additionalProperties")
                if path.endswith(("kubernetesObject", "kubernetesList.items", "global")):
                    open_ += 1
                else:
                    closed += 1
                    self.assertTrue(further is False or isinstance(further, dict), path)
                    named = "properties" in schema or "patternProperties" in schema
                    self.assertEqual(further is False, named, path)
            for key in ("properties", "patternProperties", "definitions"):
                for name, one in schema.get(key, {}).items():
                    walk(one, f"{path}.{name}")
            for key in ("items", "additionalProperties"):
                if isinstance(schema.get(key), dict):
                    walk(schema[key], f"{path}.{key}")
            for one in schema.get("oneOf", []):
                walk(one, path)

        walk(self.schema, "values")
        self.assertGreater(closed, 40)
        self.assertEqual(open_, 3)

    def test_the_schema_has_every_key_of_the_gateways_configuration_and_no_other(self):
        config = self.schema["properties"]["gateway"]["properties"]["config"]
        self.assertEqual(sorted(self.schema_leaves(config)), sorted(leaves(reference())))

    def test_the_whole_reference_configuration_is_taken_as_it_is(self):
        for acme in [False, True]:
            config = with_absolute_files(with_one_certificate(reference(), acme=acme))
            config["listen"] = config["admin"]["listen"] = "0.0.0.0:8080"
            mount = [{"name": "files", "mountPath": "/files"}]
            values = {"gateway": {"config": config, "extraVolumeMounts": mount}}
            maps = chart.of_kind(chart.manifests(values), "ConfigMap")
            [found] = [one for one in maps if one["metadata"]["name"].endswith("-gateway")]
            self.assertEqual(yaml.safe_load(found["data"]["gateway.yaml"]), config)

    def test_the_schema_has_every_flag_of_the_agent_and_no_other(self):
        said = subprocess.run([os.environ["FLOTILLA_AGENT"], "serve", "--help"], capture_output=True, text=True)
        flags = set(re.findall(r"^\s+(?:-h, )?--([a-z-]+)", said.stdout, flags=re.M)) - OF_THE_CHART
        self.assertGreater(len(flags), 10)
        schema = self.schema["definitions"]["pool"]["properties"]["flags"]
        self.assertEqual(sorted(schema["properties"]), sorted(flags))

    def test_every_value_has_a_default_and_every_default_is_in_the_schema(self):
        defaults = chart.loaded().values
        for part, schema in [
            (defaults, self.schema),
            (defaults["agentDefaults"], self.schema["definitions"]["pool"]),
            (defaults["gateway"], self.schema["properties"]["gateway"]),
            (defaults["monitoring"], self.schema["properties"]["monitoring"]),
            (defaults["networkPolicy"], self.schema["properties"]["networkPolicy"]),
        ]:
            self.assertEqual(sorted(part), sorted(schema["properties"].keys() - {"global"}))

    def test_the_chart_has_the_version_of_the_binaries(self):
        workspace = tomllib.loads((chart.ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
        metadata = chart.loaded().metadata
        self.assertEqual((metadata["version"], metadata["appVersion"]), (workspace, workspace))

    def test_dashboards_and_rules_in_the_chart_are_those_of_the_repository(self):
        for here, there, pattern in [
            ("dashboards", "configs/grafana/dashboards", "*.json"),
            ("prometheus", "configs/prometheus", "*.yml"),
        ]:
            ours = {f.name: f.read_bytes() for f in (chart.PATH / "files" / here).glob(pattern)}
            theirs = {f.name: f.read_bytes() for f in (chart.ROOT / there).glob(pattern)}
            theirs = {name: data for name, data in theirs.items() if here == "dashboards" or b"\ngroups:" in b"\n" + data}
            self.assertEqual(sorted(ours), sorted(theirs), "run 'make chart-files'")
            for name in ours:
                self.assertEqual(ours[name], theirs[name], f"{name}: run 'make chart-files'")

    def test_what_is_scraped_has_the_names_that_dashboards_and_rules_know(self):
        production = dict(chart.value_sets())["03-production"]
        monitors = chart.of_kind(chart.manifests(production), "ServiceMonitor", "PodMonitor")
        ends = [one["spec"].get("endpoints", one["spec"].get("podMetricsEndpoints")) for one in monitors]
        jobs = {rule["replacement"] for [end] in ends for rule in end["relabelings"]}
        self.assertEqual(jobs, {"flotilla-gateway", "flotilla-agent"})
        for file in sorted((chart.PATH / "files").glob("*/*")):
            named = re.findall(r'job=\\?"([^"\\]+)', file.read_text())
            self.assertLessEqual(set(named), jobs, file.name)

    def test_dashboards_and_rules_are_rendered_as_they_are(self):
        values = {"monitoring": {"dashboards": {"enabled": True}, "prometheusRule": {"enabled": True}}}
        objects = chart.manifests(values)
        shown = {}
        for one in chart.of_kind(objects, "ConfigMap"):
            shown.update({name: json.loads(text) for name, text in one["data"].items() if name.endswith(".json")})
        ours = {f.name: json.loads(f.read_text()) for f in (chart.PATH / "files/dashboards").glob("*.json")}
        self.assertEqual(shown, ours)
        rendered = [group for one in chart.of_kind(objects, "PrometheusRule") for group in one["spec"]["groups"]]
        files = sorted((chart.PATH / "files/prometheus").glob("*.yml"))
        groups = [group for f in files for group in yaml.safe_load(f.read_text())["groups"]]
        self.assertEqual(rendered, groups)


if __name__ == "__main__":
    unittest.main()
