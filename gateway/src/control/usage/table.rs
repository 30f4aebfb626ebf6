//! Usage as tables of comma-separated values (RFC 4180).

use std::fmt::Write;

use chrono::{DateTime, Datelike, Months, NaiveTime, SecondsFormat, Utc};

use crate::store::{UsageRecord, UsageStep};

const MINUTE_S: u64 = 60;
const HOUR_MINUTES: u64 = 60;
/// Our columns, after that of the time.
const COLUMNS: &str = "tenant,class,model,endpoint,prompt_tokens,cached_tokens,\
                       completion_tokens,cost\r\n";
/// The mandatory columns of FOCUS 1.2 (<https://focus.finops.org>) and those that say what was
/// consumed by whom.
const FOCUS_COLUMNS: &str = "BilledCost,BillingAccountId,BillingAccountName,BillingCurrency,\
     BillingPeriodEnd,BillingPeriodStart,ChargeCategory,ChargeClass,ChargeDescription,\
     ChargePeriodEnd,ChargePeriodStart,ConsumedQuantity,ConsumedUnit,ContractedCost,EffectiveCost,\
     InvoiceIssuerName,ListCost,PricingQuantity,PricingUnit,ProviderName,PublisherName,ResourceId,\
     ServiceCategory,ServiceName,SkuId,SubAccountId,SubAccountName,x_Class\r\n";
/// The provider of our own nodes.
const PROVIDER: &str = "Flotilla";

/// One row for each minute or hour, tenant, class, model and endpoint. Times are UTC; cached tokens
/// are a part of prompt tokens; costs are in the currency of the prices.
pub(super) fn csv(rows: &[UsageRecord], step: UsageStep) -> String {
    let first = match step {
        UsageStep::Minute => "minute",
        UsageStep::Hour => "hour",
    };
    let mut text = format!("{first},{COLUMNS}");
    for UsageRecord { minute, tenant, class, model, endpoint, sum } in rows {
        let (begin, cost) = (time(start(*minute)), amount(sum.cost));
        let cells = [&*begin, tenant, class, model, endpoint].map(cell).join(",");
        let _ = write!(text, "{cells},{},{},{},{cost}\r\n", sum.prompt, sum.cached, sum.completion);
    }
    text
}

/// Two rows for each of our hours: prompt and completion tokens. What an endpoint was paid for both
/// is in that of completion tokens, because no price of a kind of token is known afterwards.
pub(super) fn focus(rows: &[UsageRecord], currency: &str) -> String {
    let mut text = FOCUS_COLUMNS.to_string();
    for row in rows {
        focus_row(&mut text, row, currency, ("prompt", row.sum.prompt, 0));
        focus_row(&mut text, row, currency, ("completion", row.sum.completion, row.sum.cost));
    }
    text
}

fn focus_row(
    text: &mut String,
    row: &UsageRecord,
    currency: &str,
    (kind, tokens, cost): (&str, u64, u64),
) {
    let begin = start(row.minute);
    let end = start(row.minute + HOUR_MINUTES);
    let (month_begin, month_end) = month(begin);
    let provider = if row.endpoint.is_empty() { PROVIDER } else { &row.endpoint };
    let (cost, tokens) = (amount(cost), tokens.to_string());
    let [begin, end, month_begin, month_end] = [begin, end, month_begin, month_end].map(time);
    let description = format!("{kind} tokens of {}", row.model);
    let sku = format!("{}/{kind}", row.model);
    let cells = [
        &*cost,
        PROVIDER,
        PROVIDER,
        currency,
        &month_end,
        &month_begin,
        "Usage",
        "",
        &description,
        &end,
        &begin,
        &tokens,
        "Tokens",
        &cost,
        &cost,
        provider,
        &cost,
        &tokens,
        "Tokens",
        provider,
        provider,
        &row.model,
        "AI and Machine Learning",
        "Inference",
        &sku,
        &row.tenant,
        &row.tenant,
        &row.class,
    ];
    text.push_str(&cells.map(cell).join(","));
    text.push_str("\r\n");
}

fn start(minute: u64) -> DateTime<Utc> {
    let seconds = i64::try_from(minute.saturating_mul(MINUTE_S)).unwrap_or_default();
    DateTime::from_timestamp(seconds, 0).unwrap_or_default()
}

/// The beginning and the end of the month of a time.
fn month(of: DateTime<Utc>) -> (DateTime<Utc>, DateTime<Utc>) {
    let first = of.date_naive().with_day(1).unwrap_or_default();
    let next = first.checked_add_months(Months::new(1)).unwrap_or(first);
    (first.and_time(NaiveTime::MIN).and_utc(), next.and_time(NaiveTime::MIN).and_utc())
}

fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An amount in billionths, as a decimal number.
fn amount(billionths: u64) -> String {
    let text = format!("{}.{:09}", billionths / 1_000_000_000, billionths % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// A cell. Quoted if need be; what a spreadsheet would run as a formula is a text.
fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.into() };
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::UsageSum;

    fn record(tenant: &str, model: &str, endpoint: &str) -> UsageRecord {
        let sum = UsageSum { prompt: 100, cached: 40, completion: 7, cost: 1_250_000_000 };
        let (tenant, model, endpoint) = (tenant.into(), model.into(), endpoint.into());
        // 2026-12-31, 23:00
        UsageRecord { minute: 499_655 * 60, tenant, class: "batch".into(), model, endpoint, sum }
    }

    #[test]
    fn each_row_has_a_line() {
        let text = csv(&[record("ada", "m", "")], UsageStep::Hour);
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!((lines[0].split(',').count(), &lines[0][..12]), (9, "hour,tenant,"));
        assert!(csv(&[], UsageStep::Minute).starts_with("minute,tenant,"));
        assert_eq!(lines[1], "2026-12-31T23:00:00Z,ada,batch,m,,100,40,7,1.25");
        assert_eq!(lines[2..], [""]);
        let amounts = [(0, "0"), (1, "0.000000001"), (10_000_000_000, "10")];
        assert!(amounts.iter().all(|(cost, text)| amount(*cost) == *text));
    }

    #[test]
    fn names_of_others_are_no_formulas_and_no_cells_of_their_own() {
        for (text, written) in [
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\nb", "\"a\nb\""),
            ("=1+1", "'=1+1"),
            ("@x,y", "\"'@x,y\""),
        ] {
            assert_eq!(cell(text), written);
        }
    }

    #[test]
    fn a_row_of_focus_has_each_column_and_costs_count_once() {
        let text = focus(&[record("ada", "m", "external/gpu")], "EUR");
        let mut lines = text.trim_end().split("\r\n");
        let names: Vec<&str> = lines.next().unwrap().split(',').collect();
        let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        assert!(rows.len() == 2 && rows.iter().all(|row| row.len() == names.len()), "{text}");
        let of = |row: usize, name: &str| rows[row][names.iter().position(|n| *n == name).unwrap()];
        assert_eq!((of(0, "BilledCost"), of(1, "BilledCost")), ("0", "1.25"));
        assert_eq!((of(0, "ConsumedQuantity"), of(1, "ConsumedQuantity")), ("100", "7"));
        assert_eq!((of(1, "SubAccountId"), of(1, "ProviderName")), ("ada", "external/gpu"));
        assert_eq!(of(1, "ChargePeriodEnd"), "2027-01-01T00:00:00Z");
        assert_eq!(of(1, "BillingPeriodStart"), "2026-12-01T00:00:00Z");
        assert_eq!(of(1, "BillingPeriodEnd"), "2027-01-01T00:00:00Z");
    }
}
