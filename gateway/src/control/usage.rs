//! Usage of all tenants for operators, as CSV: our columns, or those of FOCUS.

use std::ops::Range;
use std::time::SystemTime;

use chrono::{Datelike, Days, Months, NaiveDate};
use hyper::{Request, Response, StatusCode};
use inference_protocol::time::unix_seconds;

use crate::context::Gateway;
use crate::control::only;
use crate::store::{UsageStep, minute_of};
use crate::types::error::Error;
use crate::types::query::{invalid, parameter};
use crate::types::response::{self, Body};

mod table;

/// Path of the usage.
pub const USAGE_PATH: &str = "/admin/v1/usage";
/// Most rows of a table: about 10 MB.
const ROWS_MAX: usize = 100_000;
const CSV: &str = "text/csv; charset=utf-8";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    /// Minutes since 1970.
    minutes: Range<u64>,
    step: UsageStep,
    format: Format,
}

#[derive(Debug, PartialEq, Eq)]
enum Format {
    /// Our columns.
    Csv,
    /// The columns of FOCUS; the currency of all amounts.
    Focus(String),
}

/// Handles a request for the usage.
pub(super) async fn serve<B>(
    gateway: &Gateway,
    request: &Request<B>,
) -> Result<Response<Body>, Error> {
    only(request, "GET, HEAD")?;
    let today = day_of(unix_seconds(SystemTime::now()));
    let Asked { minutes, step, format } = Asked::read(request.uri().query(), today)?;
    let store = gateway.store.as_ref().ok_or(Error::StoreOff)?;
    let rows = store.usage(minutes, step, ROWS_MAX + 1).await.map_err(|error| error.of(""))?;
    if rows.len() > ROWS_MAX {
        let why = format!("there are more than {ROWS_MAX} rows; ask for fewer days");
        return Err(invalid("from", &why));
    }
    let text = match format {
        Format::Csv => table::csv(&rows, step),
        Format::Focus(currency) => table::focus(&rows, &currency),
    };
    Ok(response::with_type(StatusCode::OK, CSV, text))
}

impl Asked {
    /// Reads `from` and `to` (days; the month of `today` without them), `by`, `format` and
    /// `currency`.
    fn read(query: Option<&str>, today: NaiveDate) -> Result<Self, Error> {
        let day = |name: &str, default: Option<NaiveDate>| match parameter(query, name) {
            None => default.ok_or_else(|| invalid(name, "it is too late")),
            Some(day) => day.parse().map_err(|_| invalid(name, "expected a day, as 2026-01-31")),
        };
        let from = day("from", today.with_day(1))?;
        let to =
            day("to", from.with_day(1).and_then(|day| day.checked_add_months(Months::new(1))))?;
        if to <= from {
            return Err(invalid("to", "it must be after 'from'; its own day is not included"));
        }
        let format = match parameter(query, "format").as_deref() {
            None | Some("csv") => Format::Csv,
            Some("focus") => Format::Focus(currency(query)?),
            Some(_) => return Err(invalid("format", "expected csv or focus")),
        };
        let step = match (parameter(query, "by").as_deref(), &format) {
            (None | Some("hour"), _) => UsageStep::Hour,
            (Some("minute"), Format::Csv) => UsageStep::Minute,
            (Some("minute"), Format::Focus(_)) => return Err(invalid("by", "focus has hours")),
            (Some(_), _) => return Err(invalid("by", "expected hour or minute")),
        };
        Ok(Self { minutes: minute(from)..minute(to), step, format })
    }
}

/// A code of ISO 4217.
fn currency(query: Option<&str>) -> Result<String, Error> {
    let currency = parameter(query, "currency").unwrap_or_else(|| "USD".into());
    let is_code = currency.len() == 3 && currency.bytes().all(|byte| byte.is_ascii_uppercase());
    match is_code {
        true => Ok(currency),
        false => Err(invalid("currency", "expected three capital letters, as EUR")),
    }
}

/// The first minute of a day, since 1970; those before are the first.
fn minute(day: NaiveDate) -> u64 {
    let seconds = day.and_time(chrono::NaiveTime::MIN).and_utc().timestamp();
    minute_of(u64::try_from(seconds).unwrap_or_default())
}

fn day_of(seconds: u64) -> NaiveDate {
    NaiveDate::default().checked_add_days(Days::new(seconds / (24 * 60 * 60))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Asked, Error> {
        Asked::read(Some(query), NaiveDate::from_ymd_opt(2026, 12, 24).unwrap())
    }

    fn minutes(from: (i32, u32, u32), to: (i32, u32, u32)) -> Range<u64> {
        let day = |(y, m, d)| minute(NaiveDate::from_ymd_opt(y, m, d).unwrap());
        day(from)..day(to)
    }

    #[test]
    fn without_days_it_is_this_month() {
        assert_eq!(day_of(1_767_225_599), NaiveDate::from_ymd_opt(2025, 12, 31).unwrap());
        assert_eq!(read("").unwrap().minutes, minutes((2026, 12, 1), (2027, 1, 1)));
        let november = minutes((2026, 11, 7), (2026, 12, 1));
        assert_eq!(read("from=2026-11-07").unwrap().minutes, november);
        let week = minutes((2026, 12, 1), (2026, 12, 8));
        assert_eq!(
            read("to=2026-12-08&format=csv").unwrap(),
            Asked { minutes: week, step: UsageStep::Hour, format: Format::Csv }
        );
        assert_eq!(read("by=minute").unwrap().step, UsageStep::Minute);
        let focus = read("format=focus&currency=EUR").unwrap().format;
        assert_eq!(focus, Format::Focus("EUR".into()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for query in [
            "from=yesterday",
            "from=2026-13-01",
            "to=2026-12-01",
            "from=2026-12-02&to=2026-12-01",
            "format=xlsx",
            "by=day",
            "by=minute&format=focus",
            "format=focus&currency=euro",
            "from=%FF",
        ] {
            assert_eq!(read(query).map_err(|error| error.status()), Err(400), "{query}");
        }
        assert_eq!(read("from=1900-01-01").unwrap().minutes.start, 0);
        assert!(read("from=%2B262142-12-31").is_err(), "there is no later month");
    }
}
