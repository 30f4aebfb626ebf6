//! PURE. How many nodes a load takes, and the resulting cost per token.
//!
//! A request occupies a node for the prefill time of its prompt plus its share of decoding. Both
//! speeds are measured while the node does nothing else, so the sum is what the request costs the
//! node.

use serde::Serialize;

const DAY_SECONDS: f64 = 86_400.0;
const MILLION: f64 = 1e6;

/// The load to serve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Load {
    pub requests_per_day: f64,
    /// Tokens per prompt.
    pub prompt_tokens: f64,
    /// Fraction of them served from the cache, because an earlier prompt has the same prefix.
    pub cached_share: f64,
    /// Tokens per response.
    pub answer_tokens: f64,
    /// Ratio of the busiest hour's load to the average.
    pub peak_factor: f64,
    /// Maximum utilization of a node in the busiest hour: the rest keeps queues short.
    pub utilisation_max: f64,
}

/// Speed of one machine, with as many parallel requests as it takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Speed {
    /// Prefill speed in tokens per second.
    pub prefill: f64,
    /// Decode speed in tokens per second, of all requests together.
    pub decode: f64,
}

/// The machines that a load takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Fleet {
    /// Seconds of one machine per request.
    pub seconds_per_request: f64,
    /// Seconds to the first token on an idle machine.
    pub seconds_to_first_token: f64,
    pub machines: u64,
    /// Average utilization over the day.
    pub utilisation: f64,
    /// Utilization in the busiest hour.
    pub utilisation_at_peak: f64,
}

/// Cost of a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Cost {
    pub per_day: f64,
    /// Cost per million tokens, prompts and responses together.
    pub per_million_tokens: f64,
}

impl Load {
    /// Number of machines of that speed; at least one.
    pub(crate) fn fleet(&self, speed: Speed) -> Fleet {
        let seconds_to_first_token = self.prompt_tokens * (1.0 - self.cached_share) / speed.prefill;
        let seconds_per_request = seconds_to_first_token + self.answer_tokens / speed.decode;
        let busy = self.requests_per_day * seconds_per_request / DAY_SECONDS;
        let machines = (busy * self.peak_factor / self.utilisation_max).ceil().max(1.0);
        Fleet {
            seconds_per_request,
            seconds_to_first_token,
            machines: machines as u64,
            utilisation: busy / machines,
            utilisation_at_peak: busy * self.peak_factor / machines,
        }
    }

    /// Cost of machines rented by the hour.
    pub(crate) fn rented(&self, machines: u64, price_per_hour: f64) -> Cost {
        self.cost(machines as f64 * price_per_hour * 24.0)
    }

    /// Requests per second that one machine must serve in the busiest hour to cost the same as
    /// `cost`.
    pub(crate) fn break_even(&self, cost: Cost, price_per_hour: f64) -> f64 {
        let machines = cost.per_day / (price_per_hour * 24.0);
        self.requests_per_day * self.peak_factor / DAY_SECONDS / machines
    }

    fn cost(&self, per_day: f64) -> Cost {
        let tokens = self.requests_per_day * (self.prompt_tokens + self.answer_tokens);
        Cost { per_day, per_million_tokens: per_day / (tokens / MILLION) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load {
        requests_per_day: 86_400.0,
        prompt_tokens: 500.0,
        cached_share: 0.0,
        answer_tokens: 100.0,
        peak_factor: 3.0,
        utilisation_max: 0.75,
    };
    const SPEED: Speed = Speed { prefill: 250.0, decode: 50.0 };

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn a_request_takes_the_time_of_its_prompt_and_of_its_answer() {
        // One request per second, four seconds each: four machines on average, twelve at the peak.
        let fleet = LOAD.fleet(SPEED);
        assert!(near(fleet.seconds_per_request, 4.0) && near(fleet.seconds_to_first_token, 2.0));
        assert_eq!(fleet.machines, 16);
        assert!(near(fleet.utilisation, 0.25) && near(fleet.utilisation_at_peak, 0.75));
    }

    #[test]
    fn what_is_cached_is_not_read() {
        let load = Load { cached_share: 0.5, ..LOAD };
        assert!(near(load.fleet(SPEED).seconds_per_request, 3.0));
        assert_eq!(load.fleet(SPEED).machines, 12);
    }

    #[test]
    fn nobody_has_less_than_one_machine() {
        let fleet = Load { requests_per_day: 1.0, ..LOAD }.fleet(SPEED);
        assert_eq!(fleet.machines, 1);
        assert!(fleet.utilisation < 0.001);
    }

    #[test]
    fn machines_and_tokens_cost_what_they_cost() {
        // 51.84 million tokens per day.
        let rented = LOAD.rented(16, 0.01);
        assert!(near(rented.per_day, 3.84));
        assert!(near(rented.per_million_tokens, 3.84 / 51.84));
    }

    #[test]
    fn a_machine_that_costs_as_much_must_answer_as_much() {
        // Sixteen machines at 0.01 cost as much as one at 0.16, which must serve the whole peak.
        let cost = LOAD.rented(16, 0.01);
        assert!(near(LOAD.break_even(cost, 0.16), 3.0));
        assert!(near(LOAD.break_even(cost, 0.32), 6.0));
    }
}
