//! Pairs tool calls with their results. Most of Ollama's clients send no ids, only an order.

/// The calls of a conversation so far.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// How many ids were generated.
    count: usize,
    /// Id and name of the calls of the last message that has any, which await their results.
    open: Vec<(String, String)>,
}

impl Calls {
    /// Begins a message with calls.
    pub(super) fn begin(&mut self) {
        self.open.clear();
    }

    /// Adds a call and returns its id: its own, or one made of its place in the conversation, so
    /// that a prompt begins as that of the turn before.
    pub(super) fn add(&mut self, id: Option<String>, name: &str) -> String {
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.generate());
        self.open.push((id.clone(), name.to_string()));
        id
    }

    /// Returns the id of the call whose result has this id or is of this tool.
    pub(super) fn close(&mut self, id: Option<String>, tool: Option<&str>) -> String {
        let by_id = self.open.iter().position(|(open, _)| Some(open) == id.as_ref());
        let by_name = || self.open.iter().position(|(_, name)| Some(name.as_str()) == tool);
        let in_order = (!self.open.is_empty()).then_some(0);
        match by_id.or_else(by_name).or(in_order) {
            Some(place) => self.open.remove(place).0,
            None => id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.generate()),
        }
    }

    /// Nine letters and digits: Mistral's templates refuse other ids.
    fn generate(&mut self) -> String {
        let id = format!("call{:05}", self.count);
        self.count += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(names: &[&str]) -> Calls {
        let mut calls = Calls::default();
        names.iter().for_each(|name| drop(calls.add(None, name)));
        calls
    }

    #[test]
    fn results_without_a_name_belong_to_calls_in_order() {
        let mut calls = calls(&["f", "g"]);
        assert_eq!(calls.close(None, None), "call00000");
        assert_eq!(calls.close(None, None), "call00001");
    }

    #[test]
    fn results_with_a_name_belong_to_calls_of_that_name() {
        let mut calls = calls(&["f", "g", "g"]);
        assert_eq!(calls.close(None, Some("g")), "call00001");
        assert_eq!(calls.close(None, Some("g")), "call00002");
        assert_eq!(calls.close(None, Some("misspelled")), "call00000");
    }

    #[test]
    fn ids_of_the_client_win_and_lost_ones_are_found_by_name() {
        let mut calls = calls(&["f"]);
        assert_eq!(calls.add(Some("a".into()), "g"), "a");
        assert_eq!(calls.close(Some("a".into()), Some("f")), "a");
        assert_eq!(calls.close(Some("dropped".into()), Some("f")), "call00000");
        assert_eq!(calls.close(Some("orphan".into()), None), "orphan");
        assert_eq!(calls.close(None, None), "call00001");
    }
}
