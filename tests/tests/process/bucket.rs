//! Contents of files in a bucket of a real server of S3's API.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use fleet_tests::batches::{batch, begun, delete, ended, line, lines_of, stored};
use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::postgres::{Postgres, free_port};
use fleet_tests::process::Fleet;
use fleet_tests::{chat, eventually_within, root};
use hyper::Method;

use super::shared_store::{Shared, answers};

const STARTED: Duration = Duration::from_secs(60);

/// A server with a bucket.
pub(super) struct Storage {
    child: Child,
    client: Client,
    port: u16,
}

impl Storage {
    /// `None` where it is not installed.
    pub(super) async fn start(port: u16) -> Option<Self> {
        let program = root().join("target/tools/s3/bin/moto_server");
        if !program.exists() {
            let program = program.display();
            eprintln!("skipped: there is no {program}; 'make setup-test' installs it");
            return None;
        }
        let mut command = Command::new(program);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let client = Client::new(([127, 0, 0, 1], port).into(), None);
        let server = Self { child, client, port };
        eventually_within(STARTED, "the storage to start", async || {
            let made = server.client.try_send(Method::PUT, "/flotilla", "".into()).await;
            made.is_ok_and(|made| made.status == 200).then_some(())
        })
        .await;
        Some(server)
    }

    /// Keys of all objects.
    async fn keys(&self) -> Vec<String> {
        let listed = self.client.get("/flotilla?list-type=2").await;
        let text = String::from_utf8(listed.body.to_vec()).unwrap();
        let keys = text.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().into());
        keys.collect()
    }

    /// What is stored under a key.
    pub(super) async fn object(&self, key: &str) -> Bytes {
        // The server checks no signature, but wants one.
        let signature = "AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/s3/aws4_request, \
            SignedHeaders=host, Signature=0";
        let client = self.client.with_header("authorization", signature);
        client.get(&format!("/flotilla/{key}")).await.body
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The store of a gateway with a folder of its own.
pub(super) fn store(shared: &Shared, storage: &Storage, name: &str, database: &str) -> String {
    shared.folder.write("s3.key", "secret-of-the-storage");
    let folder = shared.folder.path().display();
    format!(
        "store: {{dir: '{folder}/{name}'{database}, s3: {{bucket: flotilla, prefix: a/b, \
         endpoint: 'http://127.0.0.1:{}', access_key_id: id, secret_key_file: '{folder}/s3.key'}}}}\n",
        storage.port
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_the_contents_of_files_in_a_bucket() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let Some(storage) = Storage::start(free_port()).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let folder = shared.folder.path().display().to_string();
    let database = format!(", postgres_url_file: '{folder}/database.url'");
    let a = Fleet::start(&store(&shared, &storage, "a", &database)).await;
    let b = Fleet::start(&store(&shared, &storage, "b", &database)).await;
    // In one request, and in parts.
    let large = "x".repeat(20 << 20);
    for content in ["small", &large] {
        let file = stored(&a.client, content).await;
        for gateway in [&b, &a] {
            let read = gateway.client.get(&format!("/v1/files/{file}/content")).await;
            assert!(read.status == 200 && read.body == content.as_bytes(), "{}", read.status);
        }
        assert_eq!(storage.keys().await, [format!("a/b/{file}")]);
        // What was read is there as a copy.
        let copy = shared.folder.path().join("b/files").join(&file);
        assert_eq!(std::fs::read(copy).unwrap().len(), content.len());
        assert_eq!(delete(&b.client, &format!("/v1/files/{file}")).await, 200);
        assert!(storage.keys().await.is_empty());
        let gone = a.client.get(&format!("/v1/files/{file}/content")).await;
        assert_eq!(gone.status, 404);
    }
    let mut node = MockNode::join(a.client.address(), healthy("n", 4)).await;
    let id = begun(&a.client, &line("x", "1")).await;
    node.asked().await.answer("Hello");
    let done = ended(&b.client, &id).await;
    let output = lines_of(&b.client, &done["output_file_id"]).await;
    assert_eq!(output[0]["response"]["body"]["choices"][0]["message"]["content"], "Hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_bucket_is_gone_other_requests_are_served_and_a_batch_ends_later() {
    let Some(mut storage) = Storage::start(free_port()).await else { return };
    let shared = Shared::new("");
    let fleet = Fleet::start(&store(&shared, &storage, "a", "")).await;
    let mut node = MockNode::join(fleet.client.address(), healthy("n", 4)).await;
    let id = begun(&fleet.client, &line("x", "1")).await;
    let asked = node.asked().await;
    storage.kill();
    answers(asked).await;
    let refused = fleet_tests::batches::upload(&fleet.client, "x", &[("purpose", "batch")]).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    let served = tokio::spawn({
        let client = fleet.client.clone();
        async move { client.chat(&chat("Hello")).await.status }
    });
    node.asked().await.answer("Hello");
    assert_eq!(served.await.unwrap(), 200);
    assert_ne!(batch(&fleet.client, &id).await["status"], "completed");
    let storage = Storage::start(storage.port).await.unwrap();
    let done = ended(&fleet.client, &id).await;
    assert_eq!(
        (&done["status"], &done["request_counts"]["completed"]),
        (&"completed".into(), &1.into())
    );
    assert_eq!(lines_of(&fleet.client, &done["output_file_id"]).await.len(), 1);
    assert_eq!(storage.keys().await.len(), 1);
    assert!(node.is_asked().is_none(), "the line is not run again");
}
