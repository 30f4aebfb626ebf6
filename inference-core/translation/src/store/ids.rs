//! Ids of responses and their items. All ids of a response contain its random number, so an item's
//! id leads to its response.

/// Hexadecimal digits of the random number.
const DIGITS: usize = 32;

/// Id of the response.
pub(crate) fn response(random: u128) -> String {
    format!("resp_{random:032x}")
}

/// The random number in the id of a response; `None` if it is not one of ours.
pub(crate) fn number(response_id: &str) -> Option<u128> {
    let digits = response_id.strip_prefix("resp_")?;
    let is_ours = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_id = digits.len() == DIGITS && digits.bytes().all(is_ours);
    u128::from_str_radix(digits, 16).ok().filter(|_| is_id)
}

/// Id of the item at `index` of the output.
pub(crate) fn output(kind: &str, random: u128, index: usize) -> String {
    format!("{kind}_{random:032x}{:08x}", index as u32)
}

/// Id of the item at `index` of the input.
pub(crate) fn input(kind: &str, random: u128, index: usize) -> String {
    format!("{kind}_{random:032x}{:08x}", index as u32 | 1 << 31)
}

/// Id of the response that has an item.
pub(crate) fn response_of(item: &str) -> Option<String> {
    let (_, digits) = item.split_once('_')?;
    Some(format!("resp_{}", digits.get(..DIGITS)?))
}

/// The beginning of the ids of items of a type.
pub(crate) fn kind(item_type: &str) -> &'static str {
    match item_type {
        "message" => "msg",
        "reasoning" => "rs",
        "function_call" => "fc",
        "function_call_output" => "fco",
        "custom_tool_call" => "ctc",
        "custom_tool_call_output" => "ctco",
        "local_shell_call" => "lsh",
        "local_shell_call_output" => "lsho",
        "tool_search_call" => "tsc",
        "tool_search_output" => "tso",
        _ => "item",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_an_item_leads_to_its_response() {
        assert_eq!(response_of(&output("msg", 0xab, 3)), Some(response(0xab)));
        assert_eq!(response_of(&input("fc", u128::MAX, 3)), Some(response(u128::MAX)));
        assert_eq!(number(&response(0xab)), Some(0xab));
        for id in
            ["resp_ab", "resp_+0000000000000000000000000000000", &response(0xab).to_uppercase()]
        {
            assert_eq!(number(id), None);
        }
        assert_ne!(output("msg", 1, 0), input("msg", 1, 0));
        assert_eq!(response_of("msg_1"), None);
        assert_eq!(response_of("x"), None);
    }
}
