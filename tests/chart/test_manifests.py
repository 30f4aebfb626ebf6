"""Everything that is rendered is what Kubernetes, and whoever watches it, accepts."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from urllib.parse import urlsplit

import kubernetes_validate
from helm_python import lint, package

import chart

CUSTOM = {"monitoring.coreos.com/v1", "keda.sh/v1alpha1", "gateway.networking.k8s.io/v1"}
# Fields of their specifications, of which none is a number.
WRONG = ["scaleTargetRef", "endpoints", "podMetricsEndpoints", "parentRefs", "groups", "source", "data", "dnsNames"]
# https://kubernetes.io/docs/concepts/security/pod-security-standards, restricted.
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def against_restricted(spec):
    """What a restricted namespace has against a pod."""
    pod = spec.get("securityContext", {})
    for host in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(host):
            yield host
    for volume in spec.get("volumes", []):
        if not VOLUMES & volume.keys():
            yield f"volume {volume}"
    for one in chart.containers(spec):
        own = one.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield "privileges"
        caps = own.get("capabilities", {})
        if caps.get("drop") != ["ALL"] or set(caps.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield "capabilities"
        if {**pod, **own}.get("runAsNonRoot") is not True or {**pod, **own}.get("runAsUser") == 0:
            yield "root"
        if {**pod, **own}.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccomp"
        if any("hostPort" in port for port in one.get("ports", [])):
            yield "hostPort"


def check_custom(case, objects):
    """Validates custom resources with the models of their definitions, and tries that these notice mistakes."""
    models = pathlib.Path(os.environ["CRD_MODELS"])
    if not (models / "done").exists():
        case.skipTest("models of custom resources need npm")
    script = models / "crds.mjs"
    script.write_text((chart.HERE / "crds.mjs").read_text())

    def check(some):
        return subprocess.run(["node", script], input=json.dumps(some), capture_output=True, text=True)

    done = check(objects)
    case.assertEqual((done.returncode, done.stderr), (0, ""))
    for one in objects:
        wrong = json.loads(json.dumps(one))
        wrong["spec"] = {key: 1 for key in WRONG}
        case.assertEqual(check([wrong]).returncode, 1, wrong["kind"])


class Manifests(unittest.TestCase):
    def each(self, version=""):
        for name, values in chart.value_sets():
            yield name, values, chart.manifests(values, version)

    def test_kubernetes_1_28_to_1_37_knows_every_field(self):
        self.assertGreaterEqual(len(chart.value_sets()), 8)
        checked = 0
        for version in chart.VERSIONS:
            for name, _, objects in self.each(version):
                for one in objects:
                    if one["apiVersion"] not in CUSTOM:
                        kubernetes_validate.validate(one, version, strict=True)
                        checked += 1
        self.assertGreater(checked, 800)

    def test_the_validator_refuses_what_a_version_does_not_know(self):
        objects = chart.manifests({}, "1.30")
        [deployment] = chart.of_kind(objects, "Deployment")
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(deployment, "1.28", strict=True)

    def test_custom_resources_are_what_their_definitions_say(self):
        custom = []
        for name, _, objects in self.each():
            custom += [one for one in objects if one["apiVersion"] in CUSTOM]
        kinds = {one["kind"] for one in custom}
        self.assertLessEqual({"ServiceMonitor", "PodMonitor", "ScaledObject", "HTTPRoute"}, kinds)
        check_custom(self, custom)

    def test_a_restricted_namespace_lets_every_pod_in(self):
        for name, _, objects in self.each():
            for pod, _, spec in chart.pod_specs(objects):
                against = set(against_restricted(spec))
                if name == "10-host-cache" and pod.endswith("-big"):
                    self.assertEqual(len(against), 1, against)
                    self.assertIn("hostPath", str(against))
                    continue
                self.assertEqual(against, set(), pod)
                self.assertFalse(spec["automountServiceAccountToken"])
                for one in chart.containers(spec):
                    self.assertTrue(one["securityContext"]["readOnlyRootFilesystem"])

    def test_where_the_cluster_assigns_user_ids_no_pod_names_one(self):
        ids = {"runAsUser", "runAsGroup", "fsGroup"}
        for name, values, objects in self.each():
            for pod, _, spec in chart.pod_specs(objects):
                named = ids & spec["securityContext"].keys()
                self.assertEqual(named, set() if values.get("assignedUserIds") else ids, (name, pod))
                self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                for one in chart.containers(spec):
                    self.assertFalse(ids & one["securityContext"].keys(), (name, pod))

    def test_one_label_makes_prometheus_select_monitors_and_rules(self):
        objects = chart.manifests(dict(chart.value_sets())["11-openshift"])
        labels = {}
        for one in chart.of_kind(objects, "ServiceMonitor", "PodMonitor", "PrometheusRule"):
            found = one["metadata"]["labels"]
            labels.setdefault(one["kind"], set()).add((found.get("release"), found.get("team")))
        stack = {("kube-prometheus-stack", "inference")}
        self.assertEqual(labels, {"ServiceMonitor": stack, "PrometheusRule": stack, "PodMonitor": {("other", "inference")}})

    def test_a_model_of_a_repository_is_pulled_into_the_cache_and_served_by_its_name(self):
        objects = chart.manifests(dict(chart.value_sets())["11-openshift"])
        pools = {}
        for name, _, spec in chart.pod_specs(chart.of_kind(objects, "StatefulSet")):
            [pull], [serve] = spec["initContainers"], spec["containers"]
            self.assertEqual(pull["env"][:2], serve["env"][:2])
            pools[name.removeprefix("fleet-flotilla-")] = pull["args"], serve["args"]
        pull, serve = pools["chat"]
        self.assertEqual(pull[:3] + pull[-1:], ["pull", "--cache", "--if-missing", "hf:owner/Chat-GGUF:Q4_K_M"])
        self.assertIn(f"--sha256={'0123456789abcdef' * 4}", pull)
        # The agent names it as its repository.
        self.assertIn("--model=hf:owner/Chat-GGUF:Q4_K_M", serve)
        self.assertFalse([arg for arg in serve if arg.startswith("--model-name")])
        _, serve = pools["small"]
        self.assertLessEqual({"--model=hf:owner/Small-GGUF", "--model-name=small"}, set(serve))
        # With a name for the file, it is where files are.
        pull, serve = pools["pinned"]
        self.assertEqual(pull[:2], ["pull", "--to=/models/pinned.gguf"])
        self.assertIn("--revision=v1", pull)
        self.assertLessEqual({"--model=/models/pinned.gguf", "--model-name=pinned"}, set(serve))

    def test_names_lead_to_what_is_there(self):
        for name, values, objects in self.each():
            pods = list(chart.pod_specs(objects))
            ids = [(one["kind"], one["metadata"]["name"]) for one in objects]
            self.assertEqual(len(ids), len(set(ids)))
            for kind, id in ids:
                # Kubernetes adds a hash to the label of a StatefulSet's pods.
                self.assertLessEqual(len(id), 52 if kind == "StatefulSet" else 63, id)
            for service in chart.of_kind(objects, "Service"):
                chosen = [spec for _, labels, spec in pods if service["spec"]["selector"].items() <= labels.items()]
                self.assertTrue(chosen, service["metadata"]["name"])
                for port in service["spec"].get("ports", []):
                    for spec in chosen:
                        named = [p["name"] for one in spec["containers"] for p in one["ports"]]
                        self.assertIn(port["targetPort"], named)
            for _, _, spec in pods:
                volumes = [volume["name"] for volume in spec.get("volumes", [])] + ["models"]
                for one in chart.containers(spec):
                    for mount in one.get("volumeMounts", []):
                        self.assertIn(mount["name"], volumes)
            for one in chart.of_kind(objects, "PodDisruptionBudget", "ServiceMonitor", "PodMonitor"):
                wanted = dict(one["spec"]["selector"]["matchLabels"])
                services = [s["metadata"]["labels"] for s in chart.of_kind(objects, "Service")]
                among = services if one["kind"] == "ServiceMonitor" else [labels for _, labels, _ in pods]
                self.assertTrue(any(wanted.items() <= labels.items() for labels in among), one)
            for one in chart.of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
                target = one["spec"]["scaleTargetRef"]
                [found] = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (target["kind"], target["name"])]
                self.assertNotIn("replicas", found["spec"])

    def test_agents_join_a_service_that_has_every_replicas_address_ready_or_not(self):
        joined = 0
        for name, values, objects in self.each():
            services = {one["metadata"]["name"]: one["spec"] for one in chart.of_kind(objects, "Service")}
            tls = "tls" in values.get("gateway", {}).get("config", {})
            for _, labels, spec in chart.pod_specs(chart.of_kind(objects, "StatefulSet", "DaemonSet")):
                args = spec["containers"][0]["args"]
                urls = [arg.removeprefix("--join=") for arg in args if arg.startswith("--join=")]
                if name == "08-agents-only":
                    self.assertEqual(urls, values["join"]["urls"])
                    continue
                [url] = [urlsplit(url) for url in urls]
                service, rest = url.hostname.split(".", 1)
                self.assertEqual((rest, url.scheme == "https"), (f"{chart.NAMESPACE}.svc", tls))
                found = services[service]
                self.assertEqual((found["clusterIP"], found["publishNotReadyAddresses"]), ("None", True))
                self.assertEqual([port["port"] for port in found["ports"]], [url.port])
                joined += 1
        self.assertGreaterEqual(joined, 5)

    def test_a_gateway_that_leaves_has_time_for_what_it_does(self):
        for name, values, objects in self.each():
            for one in chart.of_kind(objects, "Deployment"):
                gateway = values.get("gateway", {})
                shutdown = gateway.get("config", {}).get("timeouts", {}).get("shutdown_ms", 30_000)
                needed = gateway.get("preStopSeconds", 5) + shutdown / 1000
                self.assertGreater(one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], needed)
        sleeps = {}
        for version in ("1.29", "1.30"):
            [gateway] = chart.of_kind(chart.manifests({}, version), "Deployment")
            sleeps[version] = gateway["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]
        self.assertEqual(sleeps["1.29"], {"exec": {"command": ["sleep", "5"]}})
        self.assertEqual(sleeps["1.30"], {"sleep": {"seconds": 5}})

    def test_nothing_that_a_version_of_the_chart_changes_replaces_pods(self):
        for name, _, objects in self.each():
            for _, labels, _ in chart.pod_specs(chart.of_kind(objects, "Deployment", "StatefulSet", "DaemonSet")):
                self.assertFalse({"helm.sh/chart", "app.kubernetes.io/version"} & labels.keys())

    def test_a_configuration_that_changes_replaces_pods_only_where_that_is_asked(self):
        def annotations(**more):
            values = {"gateway": {"config": {"retries_max": more.pop("retries", 2)}, **more}}
            [one] = chart.of_kind(chart.manifests(values), "Deployment")
            return one["spec"]["template"]["metadata"].get("annotations")

        self.assertEqual(annotations(), annotations(retries=3))
        restart = annotations(configChange="restart")
        self.assertEqual(restart, annotations(configChange="restart"))
        self.assertNotEqual(restart, annotations(configChange="restart", retries=3))

    def test_false_and_zero_of_a_pool_win_over_the_defaults(self):
        values = {
            "agentDefaults": {"flags": {"tune": True, "slots": 4}, "replicas": 3},
            "agents": {"a": {"model": {"file": "m.gguf"}, "replicas": 0, "flags": {"tune": False}}},
        }
        [pool] = chart.of_kind(chart.manifests(values), "StatefulSet")
        self.assertEqual(pool["spec"]["replicas"], 0)
        args = pool["spec"]["template"]["spec"]["containers"][0]["args"]
        self.assertFalse([arg for arg in args if "tune" in arg], args)

    def test_lint_has_nothing_to_say_and_the_chart_is_packaged(self):
        for name, values in chart.value_sets():
            for version in (None, "v1.28.0", "v1.37.0"):
                report = lint(chart.PATH, values, strict=True, kube_version=version)
                self.assertEqual((report["messages"], report["errors"]), ([], []), name)
        with tempfile.TemporaryDirectory() as folder:
            made = package(chart.PATH, destination=folder)
            self.assertTrue(made.endswith(f"flotilla-{chart.loaded().version}.tgz"))

    def test_secrets_are_kept_out_of_everything_but_secrets(self):
        values = {"join": {"key": "a-join-key-of-somebody"}, "admin": {"key": "an-admin-key-of-somebody"}}
        for one in chart.manifests({**values, "agents": {"a": {"model": {"file": "m.gguf"}}}}):
            if one["kind"] != "Secret":
                self.assertNotIn("of-somebody", json.dumps(one))


if __name__ == "__main__":
    unittest.main()
