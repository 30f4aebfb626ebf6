//! What one user of Open WebUI does in a browser.

use fleet_tests::browser::Browser;
use serde_json::{Value, json};

/// For all accounts.
pub const PASSWORD: &str = "correct horse battery staple";

const SIGN_IN: &str = "
    await page.getByPlaceholder('Enter Your Email').fill(arg.email);
    await page.getByPlaceholder('Enter Your Password').fill(arg.password);
    await page.getByRole('button', { name: 'Sign in', exact: true }).click();
    await page.locator('#chat-input').waitFor();";

const ASK: &str = "
    await page.locator('#chat-input').click();
    await page.keyboard.type(arg);
    await page.keyboard.press('Enter');";

const ANSWERS: &str = "
    const answers = [...document.querySelectorAll('#response-content-container')];
    return JSON.stringify(answers.map((answer) => answer.innerText.trim())) === arg;";

/// A signed-in user's page.
pub struct WebPage(Browser);

impl WebPage {
    /// Signs a user in through the form.
    pub fn sign_in(url: &str, email: &str) -> Self {
        let mut browser =
            Browser::start().expect("Chromium or its driver is missing: run 'make setup-test'");
        browser.open(url, Value::Null);
        browser.run(SIGN_IN, json!({"email": email, "password": PASSWORD}));
        Self(browser)
    }

    /// Sends a message in the chat that is open, or in a new one.
    pub fn ask(&mut self, text: &str) {
        self.0.run(ASK, text);
    }

    /// Waits until the chat that is open has exactly these responses, so far.
    pub fn answers_are(&mut self, answers: &[&str]) {
        self.0.becomes(ANSWERS, json!(answers).to_string());
    }

    /// Waits until the chat that is open has a title.
    pub fn is_titled(&mut self, title: &str) {
        self.0.becomes("return document.title.includes(arg);", title);
    }

    /// The page asked nothing of any other host.
    pub fn stayed_here(&self) {
        let elsewhere = |problem: &&String| problem.starts_with("request: ");
        let requests: Vec<_> = self.0.problems.iter().filter(elsewhere).collect();
        assert!(requests.is_empty(), "{requests:?}");
    }
}
