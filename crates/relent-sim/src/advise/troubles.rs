//! What a service that is described may go through: scenarios to compare policies in.

use super::policy::{exact, figure};
use super::{Description, Latency, Size};
use crate::scenario::SECOND;

/// About so many requests are simulated of each: enough to tell a thousandth apart.
const REQUESTS: f64 = 40_000.0;
/// When the trouble begins, the most that is simulated of it, and the least time after it.
const BEGIN: u64 = 30;
const LONGEST: u64 = 60;
const AFTER: u64 = 60;
/// A stall is simulated for so long: what it leaves behind grows with it, and is as bad after ten seconds.
const STALL: u64 = 10;

/// A scenario that fits a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: String,
}

/// The troubles, of a service whose attempts are given so many nanoseconds.
pub(super) fn of(
    service: &Description,
    latency: &Latency,
    size: Size,
    timeout: u64,
) -> Vec<Trouble> {
    let outage = (service.failure.outage / SECOND).clamp(1, LONGEST);
    let stall = outage.min(STALL);
    let half = stall.div_ceil(2);
    let troubles: [(&str, String, String); 6] = [
        (
            "well",
            match service.failure.share > 0.0 {
                true => format!(
                    "nothing but the usual failures of {} %",
                    figure(100.0 * service.failure.share)
                ),
                false => "nothing is wrong".to_owned(),
            },
            String::new(),
        ),
        (
            "blackout",
            format!("{} at once for {outage} s", service.failure.status),
            outage_of(outage, "\"blackout\""),
        ),
        (
            "brownout",
            format!("half of the capacity for {outage} s"),
            outage_of(outage, "{ brownout = 0.5 }"),
        ),
        (
            "stall",
            format!("nothing is served for {stall} s, and all is queued"),
            outage_of(stall, "\"stall\""),
        ),
        (
            "half-fail",
            format!("every second attempt fails for {outage} s, whatever the load"),
            outage_of(outage, "{ failures = 0.5 }"),
        ),
        (
            "cold-stall",
            format!("nothing is served for {stall} s, and in its middle all clients restart"),
            format!(
                "{}\n[[clients.restarts]]\nat = \"{}s\"\n",
                outage_of(stall, "\"stall\""),
                BEGIN + half
            ),
        ),
    ];
    let troubles = troubles
        .into_iter()
        .map(|(name, description, more)| Trouble {
            name,
            text: format!(
                "description = {:?}\n\n{}{more}",
                format!("{}: {description}", service.name),
                base(service, latency, size, timeout, outage)
            ),
        });
    troubles.collect()
}

fn outage_of(seconds: u64, effect: &str) -> String {
    format!("\n[[outages]]\nat = \"{BEGIN}s\"\nfor = \"{seconds}s\"\neffect = {effect}\n")
}

/// The service and its callers, made smaller if there are too many requests to simulate.
fn base(service: &Description, latency: &Latency, size: Size, timeout: u64, outage: u64) -> String {
    let after = AFTER
        .max(3 * outage)
        .max((service.deadline / SECOND).min(2 * LONGEST));
    let lasts = BEGIN + outage + after;
    let nodes = f64::from(service.nodes);
    let workers = nodes * f64::from(size.workers);
    // A worker stays whole: with fewer than one a service would take longer than it does, unless that is so
    // little that nothing depends on it.
    let whole = (1.0 / workers).min(20.0 * SECOND as f64 / (timeout as f64 * size.capacity));
    let smaller = (REQUESTS / (service.rate * lasts as f64))
        .max(whole)
        .min(1.0);
    let [rate, capacity] = [service.rate, size.capacity].map(|per_second| per_second * smaller);
    let processes = libm::round(f64::from(service.processes) * smaller).max(1.0);
    let (nodes, at_node) = match libm::round(workers * smaller) {
        all if all >= nodes => (service.nodes, libm::round(all / nodes)),
        all => (all.max(1.0) as u16, 1.0),
    };
    // A run has at most ten million requests.
    let lasts = lasts.min((5e6 / rate) as u64).max(BEGIN + outage + 1);
    let mut text = match smaller < 1.0 {
        true => format!(
            "# One part in {} of the service and its callers: rates, processes and workers.\n",
            figure(1.0 / smaller)
        ),
        false => String::new(),
    };
    text += &format!(
        "[clients]\n\
         arrivals.poisson = {{ rate = {rate:.6}, for = \"{lasts}s\" }}\n\
         processes = {processes}\n\
         attempt_timeout = \"{}\"\n\
         deadline = \"{}\"\n\
         repeatable = {}\n\n\
         [service]\n\
         capacity = {capacity:.6}\n\
         workers = {at_node}\n\
         nodes = {nodes}\n\
         time = {{ lognormal = {:.4} }}\n\
         failures = {}\n\
         status = {}\n\
         reject_cost = 0.1\n",
        exact(timeout),
        exact(service.deadline),
        service.repeatable,
        latency.sigma(),
        service.failure.share,
        service.failure.status,
    );
    if let Some(after) = service.failure.retry_after {
        text += &format!("retry_after = \"{}\"\n", exact(after));
    }
    text
}
