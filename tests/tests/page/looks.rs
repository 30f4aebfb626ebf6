//! How the page looks: widths, themes, and text that would like to be more than text.

use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::Fleet;
use serde_json::{Value, json};

use super::{QUIET, is_clean, joins_at, look_at, row_shows};

/// Of a colour such as `rgb(14, 17, 22)`: 0 is black, 1 white.
fn brightness(colour: &Value) -> f64 {
    let text = colour.as_str().unwrap();
    let parts = text.trim_start_matches("rgb(").trim_end_matches(')').split(',');
    parts.map(|part| part.trim().parse::<f64>().unwrap()).sum::<f64>() / 3.0 / 255.0
}

const COLOURS: &str = "return page.evaluate(() => {
    const of = (name) => getComputedStyle(document.querySelector(name));
    return [of('body').backgroundColor, of('body').color, of('.card').backgroundColor];
})";

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_theme_of_its_reader() {
    let fleet = Fleet::start(QUIET).await;
    let Some(mut browser) = look_at(&fleet, json!({"dark": true})) else { return };
    let dark = browser.run(COLOURS, Value::Null);
    let [ground, text, card] = [0, 1, 2].map(|i| brightness(&dark[i]));
    assert!(ground < 0.15 && card < 0.2 && text > 0.8, "{dark}");
    drop(browser);
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    let light = browser.run(COLOURS, Value::Null);
    let [ground, text, card] = [0, 1, 2].map(|i| brightness(&light[i]));
    assert!(ground > 0.9 && card > 0.95 && text < 0.2, "{light}");
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_fits_every_width_from_a_phones_on() {
    let fleet = Fleet::start(QUIET).await;
    let mut all = Vec::new();
    for name in ["a", &"a-node-with-a-long-name-".repeat(3)[..64]] {
        let mut status = healthy(name, 64);
        status.models[0].id = "a/model-with-a-name.that_never-ends".repeat(3);
        status.decode_tokens_per_second = Some(123_456.7);
        status.prefill_tokens_per_second = Some(123_456.7);
        all.push(MockNode::join(joins_at(&fleet), status).await);
    }
    let Some(mut browser) = look_at(&fleet, json!({"width": 360, "height": 740})) else { return };
    row_shows(&mut browser, "a", "0/64");
    for width in [320, 360, 414, 600, 768, 900, 1100, 1280, 1340, 1366, 1920] {
        let wide = browser.run(
            "await page.setViewportSize({ width: arg, height: 800 });
             return page.evaluate(() => document.documentElement.scrollWidth)",
            width,
        );
        assert!(wide.as_i64().unwrap() <= width, "{wide} at {width}");
    }
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_looks_like_markup_is_text() {
    const EVIL: &str = "<img src=x onerror=\"document.title='evil'\">";
    let fleet = Fleet::start(QUIET).await;
    let mut status = healthy("alpha", 1);
    status.models[0].id = EVIL.into();
    let _node = MockNode::join(joins_at(&fleet), status).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    row_shows(&mut browser, "alpha", EVIL);
    browser.becomes("return document.querySelector('#model').value === arg", EVIL);
    let made =
        "return page.evaluate(() => [document.images.length, document.title.includes('evil')])";
    assert_eq!(browser.run(made, Value::Null), json!([1, false]), "the icon, and nothing else");
    is_clean(&browser);
}
