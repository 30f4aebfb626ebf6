//! What operators look at: the fleet page, in a real Chromium, and `flotilla-gateway top`, in a
//! real terminal. The gateway is a process of its own; its nodes do what each test tells them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod chat;
mod fleet;
mod looks;
mod screenshot;
mod top;

use fleet_tests::browser::Browser;
use fleet_tests::process::{ADMIN_KEY, Fleet};
use serde_json::{Value, json};

/// The gateway asks nodes nothing of its own: they answer only what a test knows of.
const QUIET: &str = "health: {probe_interval_ms: 0}\n";

/// The address of a fleet's page.
fn address(fleet: &Fleet) -> String {
    format!("http://{}/", fleet.admin.address())
}

const UNLOCK: &str = "
    await page.getByLabel('Key', { exact: true }).fill(arg);
    await page.getByRole('button', { name: 'Show the fleet' }).click();";

/// A browser that shows a fleet; nothing where there is none.
fn look_at(fleet: &Fleet, how: Value) -> Option<Browser> {
    let mut browser = Browser::start()?;
    browser.open(&address(fleet), how);
    browser.run(UNLOCK, ADMIN_KEY);
    browser.shows("live");
    Some(browser)
}

/// Nothing was complained about, and nothing was asked of anybody else.
fn is_clean(browser: &Browser) {
    assert!(browser.problems.is_empty(), "{:?}", browser.problems);
}

/// The address that nodes join at.
fn joins_at(fleet: &Fleet) -> std::net::SocketAddr {
    fleet.client.address()
}

/// Waits until a row of the nodes' table has a text in it.
fn row_shows(browser: &mut Browser, node: &str, text: &str) {
    browser.becomes(
        "const rows = [...document.querySelectorAll('#node-table tbody tr')];
         const row = rows.find((row) => row.cells[0].textContent === arg.node);
         return row?.textContent.includes(arg.text);",
        json!({ "node": node, "text": text }),
    );
}
