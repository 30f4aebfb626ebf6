//! The chart of a release, as the index of a repository and as an artifact of a registry have it.

use std::path::Path;
use std::process::Command;

use fleet_tests::process::Folder;
use fleet_tests::tools::output;
use serde_json::Value;

use crate::release::Release;

fn sum(file: &Path) -> String {
    output(Command::new("sha256sum").arg(file))[..64].to_string()
}

/// What a descriptor names; its digest, size and media type must be right.
fn blob(layout: &Path, descriptor: &Value, media_type: &str) -> std::path::PathBuf {
    assert_eq!(descriptor["mediaType"], media_type);
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let file = layout.join("blobs/sha256").join(digest);
    assert_eq!(sum(&file), digest);
    assert_eq!(descriptor["size"], file.metadata().unwrap().len());
    file
}

fn json(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

#[test]
fn the_chart_is_in_an_index_and_in_an_artifact_for_registries() {
    let Some(release) = Release::usual() else { return };
    let (folder, version) = (release.path(), env!("CARGO_PKG_VERSION"));
    let package = folder.join(format!("flotilla-{version}.tgz"));
    let index: Value =
        serde_yaml::from_str(&std::fs::read_to_string(folder.join("index.yaml")).unwrap()).unwrap();
    let entry = &index["entries"]["flotilla"][0];
    assert_eq!(entry["digest"], sum(&package));
    assert_eq!(entry["urls"][0], format!("{}/flotilla-{version}.tgz", crate::release::URL));

    let layout = Folder::new();
    let archive = folder.join(format!("flotilla-chart-{version}.oci.tar"));
    output(Command::new("tar").arg("-C").arg(layout.path()).arg("-xf").arg(archive));
    let layout = layout.path();
    assert_eq!(json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let listed = json(&layout.join("index.json"))["manifests"][0].clone();
    assert_eq!(listed["annotations"]["org.opencontainers.image.ref.name"], version);
    let manifest = json(&blob(layout, &listed, "application/vnd.oci.image.manifest.v1+json"));
    assert_eq!(manifest["schemaVersion"], 2);
    let config = &manifest["config"];
    let metadata = json(&blob(layout, config, "application/vnd.cncf.helm.config.v1+json"));
    for field in ["apiVersion", "name", "version", "appVersion", "type", "description"] {
        assert_eq!(metadata[field], entry[field], "{field}");
    }
    let content = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
    assert_eq!(sum(&blob(layout, &manifest["layers"][0], content)), sum(&package));
}
