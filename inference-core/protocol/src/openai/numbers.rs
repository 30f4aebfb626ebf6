//! PURE. Whole numbers as clients write them: `20` or `20.0`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A float beyond this may stand for several whole numbers.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// A type of whole number, and its range.
pub(super) trait Whole: Sized {
    /// Range for an error message.
    const RANGE: &'static str;

    fn from_wide(number: i128) -> Option<Self>;
}

impl Whole for u32 {
    const RANGE: &'static str = "from 0 to 4294967295";

    fn from_wide(number: i128) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Whole for i64 {
    const RANGE: &'static str = "of at most 64 bits";

    fn from_wide(number: i128) -> Option<Self> {
        number.try_into().ok()
    }
}

impl Whole for usize {
    const RANGE: &'static str = "of at least 0";

    fn from_wide(number: i128) -> Option<Self> {
        number.try_into().ok()
    }
}

/// Reads a whole number or null, for `deserialize_with`.
pub(super) fn whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Whole,
{
    deserializer.deserialize_any(WholeVisitor(PhantomData))
}

/// Reads a list of whole numbers, for `deserialize_with`.
pub(super) fn wholes<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Whole,
{
    let read = Vec::<Item<T>>::deserialize(deserializer)?;
    Ok(read.into_iter().map(|Item(number)| number).collect())
}

/// Reads lists of whole numbers, for `deserialize_with`.
pub(super) fn whole_lists<'de, D, T>(deserializer: D) -> Result<Vec<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Whole,
{
    let read = Vec::<Vec<Item<T>>>::deserialize(deserializer)?;
    let numbers = |list: Vec<Item<T>>| list.into_iter().map(|Item(number)| number).collect();
    Ok(read.into_iter().map(numbers).collect())
}

/// Reads a list of whole numbers or null, for `deserialize_with`.
pub(super) fn maybe_wholes<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Whole,
{
    let read = Option::<Vec<Item<T>>>::deserialize(deserializer)?;
    Ok(read.map(|list| list.into_iter().map(|Item(number)| number).collect()))
}

/// A number in a list, where null is none.
struct Item<T>(T);

impl<'de, T: Whole> Deserialize<'de> for Item<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let visitor = || WholeVisitor(PhantomData::<T>);
        let read = deserializer.deserialize_any(visitor())?;
        read.map(Item).ok_or_else(|| D::Error::invalid_type(Unexpected::Unit, &visitor()))
    }
}

struct WholeVisitor<T>(PhantomData<T>);

impl<T: Whole> Visitor<'_> for WholeVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number {}", T::RANGE)
    }

    fn visit_unit<E>(self) -> Result<Option<T>, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<T>, E> {
        let read = T::from_wide(number.into());
        read.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Option<T>, E> {
        let read = T::from_wide(number.into());
        read.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Option<T>, E> {
        let wide = whole_float(number);
        let read = wide.and_then(|wide| T::from_wide(wide.into()));
        read.map(Some).ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
    }
}

/// The whole number that a float such as `20.0` stands for.
pub(super) fn whole_float(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() <= EXACT_MAX).then_some(number as i64)
}

#[cfg(test)]
mod tests {
    use crate::openai::{SamplingFields, parse};

    #[test]
    fn a_float_without_a_fraction_is_a_whole_number() {
        let read = |json: &str| parse::<SamplingFields>(json.as_bytes());
        let fields = read(r#"{"n":2.0,"seed":-3.0,"top_k":1e2,"max_tokens":20.0}"#).unwrap();
        let all = (fields.n, fields.seed, fields.top_k, fields.max_tokens);
        assert_eq!(all, (Some(2), Some(-3), Some(100), Some(20)));
        assert_eq!(read(r#"{"n":null}"#).unwrap().n, None);
        let fields = read(r#"{"stop_token_ids":[1.0,2],"allowed_token_ids":null}"#).unwrap();
        let lists = (fields.stop_token_ids, fields.allowed_token_ids);
        assert_eq!(lists, (Some(vec![1, 2]), None));
        for (json, said) in [
            (r#"{"n":1.5}"#, "'n': expected a whole number from 0 to 4294967295, not 1.5 at"),
            (r#"{"n":-1}"#, "'n': expected a whole number from 0 to 4294967295, not -1 at"),
            (r#"{"n":"2"}"#, "'n': expected a whole number from 0 to 4294967295, not the string"),
            (r#"{"seed":1e300}"#, "'seed': expected a whole number of at most 64 bits, not 1e+300"),
            (r#"{"seed":18446744073709551615}"#, "not 18446744073709551615 at"),
            (r#"{"stop_token_ids":[1.5]}"#, "'stop_token_ids[0]': expected a whole number"),
            (
                r#"{"stop_token_ids":[1,null]}"#,
                "expected a whole number from 0 to 4294967295, not null",
            ),
        ] {
            let message = read(json).unwrap_err().message;
            assert!(message.contains(said), "{message}");
        }
    }
}
