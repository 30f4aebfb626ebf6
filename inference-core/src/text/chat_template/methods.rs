//! PURE. Python methods that templates call on strings, lists and dicts.

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::data::list;
use super::source::SLICE;

mod text;

pub(crate) use text::is_space;

/// Maximum length of a repeated or padded sequence or string, in items or bytes.
pub(crate) const LENGTH_MAX: usize = 1 << 20;

/// Arguments of a call.
pub(crate) struct Args<'a> {
    positional: &'a [Value],
    named: Option<Kwargs>,
}

/// An error caused by the template.
pub(crate) fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

impl<'a> Args<'a> {
    /// Splits off the keyword arguments.
    pub(crate) fn new(args: &'a [Value]) -> Self {
        let named = args.last().filter(|v| v.is_kwargs());
        let positional = &args[..args.len() - usize::from(named.is_some())];
        let named = named.and_then(|v| Kwargs::try_from(v.clone()).ok());
        Self { positional, named }
    }

    /// From arguments that are already split.
    pub(crate) fn of(positional: &'a [Value], named: Kwargs) -> Self {
        Self { positional, named: Some(named) }
    }

    /// The argument at position `i` or with this name.
    pub(crate) fn get(&self, i: usize, name: &str) -> Option<Value> {
        let named = || self.named.as_ref()?.get::<Value>(name).ok();
        self.positional.get(i).cloned().or_else(named)
    }

    /// Like [`Self::get`], but treats Python's `None` as missing.
    pub(crate) fn given(&self, i: usize, name: &str) -> Option<Value> {
        self.get(i, name).filter(|v| !v.is_none() && !v.is_undefined())
    }

    /// An optional string argument; an error for other types.
    pub(crate) fn text(&self, i: usize, name: &str) -> Result<Option<String>, Error> {
        let Some(value) = self.given(i, name) else { return Ok(None) };
        let text = value.as_str().map(String::from);
        text.map(Some).ok_or_else(|| invalid(format!("argument {} must be a text", i + 1)))
    }

    /// A required string argument.
    pub(crate) fn required(&self, i: usize, name: &str) -> Result<String, Error> {
        self.text(i, name)?.ok_or_else(|| invalid(format!("argument {} is missing", i + 1)))
    }

    /// An optional integer argument; an error for other types.
    pub(crate) fn integer(&self, i: usize, name: &str) -> Result<Option<i64>, Error> {
        let Some(value) = self.given(i, name) else { return Ok(None) };
        let number = value.as_i64().or_else(|| value.is_true().then_some(1));
        number.map(Some).ok_or_else(|| invalid(format!("argument {} must be a number", i + 1)))
    }
}

/// minijinja's callback for methods that a value does not have by itself.
pub(crate) fn call(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let parsed = Args::new(args);
    let own = match (value.kind(), name) {
        (ValueKind::String | ValueKind::Seq | ValueKind::Iterable, SLICE) => {
            Some(slice(value, &parsed)?)
        }
        (ValueKind::Undefined | ValueKind::None, SLICE) => {
            return Err(invalid(format!("a value of kind {} has no items", value.kind())));
        }
        (ValueKind::String, _) => text::call(value.as_str().unwrap_or_default(), name, &parsed)?,
        (ValueKind::Seq, "index") => Some(index(value, &parsed)?),
        (ValueKind::Seq | ValueKind::Map, "copy") => Some(value.clone()),
        (ValueKind::Map, "items" | "keys" | "values") => Some(view(value, name)?),
        _ => None,
    };
    match own {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// The entries, keys or values of a dict.
pub(crate) fn view(value: &Value, what: &str) -> Result<Value, Error> {
    let mut items = vec![];
    for key in value.try_iter()? {
        items.push(match what {
            "keys" => key,
            "values" => value.get_item(&key)?,
            _ => {
                let item = value.get_item(&key)?;
                Value::from(Tuple::from([key, item]))
            }
        });
    }
    Ok(Value::make_object_iterable(items, |items| Box::new(items.iter().cloned())))
}

fn index(value: &Value, args: &Args) -> Result<Value, Error> {
    let wanted = args.get(0, "value").unwrap_or_default();
    let found = value.try_iter()?.position(|item| item == wanted);
    found.map(Value::from).ok_or_else(|| invalid("the value is not in the list"))
}

/// `value[start:stop:step]`.
fn slice(value: &Value, args: &Args) -> Result<Value, Error> {
    let step = args.integer(2, "step")?.unwrap_or(1);
    if step == 0 {
        return Err(invalid("slice step cannot be zero"));
    }
    let (start, stop) = (args.integer(0, "start")?, args.integer(1, "stop")?);
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let picked = places(chars.len(), start, stop, step).filter_map(|i| chars.get(i));
        return Ok(Value::from(picked.collect::<String>()));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let picked = places(items.len(), start, stop, step).filter_map(|i| items.get(i).cloned());
    let picked: Vec<Value> = picked.collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(picked)) } else { list(picked) })
}

/// The indices of a slice, as Python's `slice.indices` computes them.
fn places(
    length: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |i: i64| (if i < 0 { i.saturating_add(length) } else { i }).clamp(lowest, highest);
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let goes_on = move |i: &i64| if step > 0 { *i < stop } else { *i > stop };
    std::iter::successors(Some(start), move |i| i.checked_add(step))
        .take_while(goes_on)
        .filter_map(|i| usize::try_from(i).ok())
}
