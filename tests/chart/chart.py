"""The chart as Helm renders it."""

import functools
import pathlib

import yaml
from helm_python import Chart, disable_logging

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
PATH = ROOT / "helm/flotilla"
NAMESPACE = "inference"
RELEASE = "fleet"
VERSIONS = [f"1.{minor}" for minor in range(28, 38)]

disable_logging()


@functools.cache
def loaded():
    return Chart.load(PATH)


def value_sets():
    """Names and values of everything that must work."""
    files = sorted((HERE / "values").glob("*.yaml"))
    return [(file.stem, yaml.safe_load(file.read_text())) for file in files]


def templates(values, version=""):
    """What each template becomes, with the notes."""
    with_version = {**values, "kubeVersion": f"{version}.0" if version else ""}
    return loaded().render(values=with_version, name=RELEASE, namespace=NAMESPACE)


def manifests(values, version=""):
    """Every object."""
    return parsed(templates(values, version))


def parsed(texts):
    """The objects in rendered templates."""
    found = []
    for path, text in sorted(texts.items()):
        if path.endswith(".yaml"):
            found += [one for one in yaml.safe_load_all(text) if one]
    return found


def of_kind(objects, *kinds):
    return [one for one in objects if one["kind"] in kinds]


def pod_specs(objects):
    """Names, labels and specs of all pods."""
    for one in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet"):
        template = one["spec"]["template"]
        yield one["metadata"]["name"], template["metadata"]["labels"], template["spec"]
    for one in of_kind(objects, "Pod"):
        yield one["metadata"]["name"], one["metadata"]["labels"], one["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]
