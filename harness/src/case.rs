//! One run: a scenario with changes, a policy and a seed.

use std::borrow::Cow;
use std::fs;
use std::time::Duration;

use relent::{NamedPolicy, Policy};
use relent_sim::{DestinationOf, Model, Scenario, WaitFormat, scenarios};

/// The name of the policy without retries.
const OFF: &str = "off";

/// One run, as command line arguments.
#[derive(clap::Args, Clone, Debug)]
pub struct Case {
    /// The scenario: a built-in one, or a file
    #[arg(long)]
    pub scenario: String,

    /// Change a value of the scenario
    #[arg(long, value_name = "KEY=VALUE", value_parser = change)]
    pub set: Vec<(String, String)>,

    /// A preset, or a file with a policy; off for no retries
    #[arg(long)]
    pub policy: String,

    /// The seed of requests and service times
    #[arg(long)]
    pub seed: u64,

    /// Use an axum service with the layers of relent-server: they provide the queue and the load shedder,
    /// and a restart kills the process
    #[arg(long)]
    pub layers: bool,

    /// For tests: each request blocks the event loop of its client process for this many milliseconds, like
    /// a defect of the client
    #[arg(long, hide = true, default_value_t = 0)]
    pub block_ms: u64,
}

/// Reads `KEY=VALUE`.
///
/// # Errors
/// When there is no key, or no equals sign.
pub fn change(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(key, _)| !key.trim().is_empty())
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| "use a key and its value, such as clients.processes=10".to_owned())
}

impl Case {
    /// The command line arguments for this case.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--scenario={}", self.scenario),
            format!("--policy={}", self.policy),
            format!("--seed={}", self.seed),
            format!("--block-ms={}", self.block_ms),
        ];
        let set = |(key, value): &(String, String)| format!("--set={key}={value}");
        arguments.extend(self.set.iter().map(set));
        arguments.extend(self.layers.then(|| "--layers".to_owned()));
        arguments
    }

    /// The scenario with its changes.
    ///
    /// # Errors
    /// An unknown scenario that is not a file either, invalid changes, and scenarios that cannot run over sockets.
    pub fn scenario(&self) -> Result<Scenario, String> {
        let text = match scenarios::get(&self.scenario) {
            Some(builtin) => Cow::Borrowed(builtin.text),
            None => fs::read_to_string(&self.scenario).map(Cow::Owned).map_err(|error| {
                let known = scenarios::names().join(", ");
                format!(
                    "no scenario {:?}, and no file that can be read ({error}); there are {known}",
                    self.scenario
                )
            })?,
        };
        let changes = self.set.iter();
        let changes: Vec<_> = changes
            .map(|(key, to)| (key.as_str(), to.as_str()))
            .collect();
        let scenario = Scenario::parse_with(&text, &changes);
        let scenario = scenario.map_err(|error| format!("{}: {error}", self.scenario))?;
        playable(&scenario).map_err(|what| format!("{}: {what}", self.scenario))?;
        Ok(scenario)
    }

    /// The policy with the limits of the scenario's callers: their deadline, and their attempt timeout unless the
    /// policy has a shorter one.
    ///
    /// # Errors
    /// A policy that does not exist or cannot be read.
    pub fn policy(&self, scenario: &Scenario) -> Result<Policy, String> {
        let name = match self.policy.as_str() {
            OFF => "standard",
            name => name,
        };
        let policy = NamedPolicy::load(name)
            .map_err(|error| error.to_string())?
            .policy;
        let given = Duration::from_nanos(scenario.clients.attempt_timeout);
        let timeout = policy.attempt_timeout().map_or(given, |own| own.min(given));
        policy
            .into_builder()
            .retries_off(self.policy == OFF)
            .attempt_timeout(timeout)
            .deadline(Duration::from_nanos(scenario.clients.deadline))
            .build()
            .map_err(|error| error.to_string())
    }
}

/// Rejects scenarios with parts that would be ignored.
fn playable(scenario: &Scenario) -> Result<(), &'static str> {
    let limiter = scenario.service.limiter;
    let format = limiter.map_or(WaitFormat::default(), |limiter| limiter.format);
    let refusals = [
        (
            scenario.service.model != Model::Queue,
            "only the model \"queue\" is played over sockets",
        ),
        (
            scenario.chain.layers > 1,
            "a chain is not played over sockets",
        ),
        (
            scenario.network.loss > 0.0 || scenario.network.deviation > 0,
            "the network is that of this machine: leave out loss and deviation",
        ),
        (
            scenario.clients.clock_skew > 0
                || matches!(format, WaitFormat::Date | WaitFormat::LoneDate),
            "the clocks are those of this machine: leave out clock_skew and dates",
        ),
        (
            !scenario.clients.classes.is_empty(),
            "classes of requests are not played over sockets: leave out clients.classes",
        ),
        (
            !scenario.clients.restarts.is_empty(),
            "restarts of clients are not played over sockets: leave out clients.restarts",
        ),
        (
            scenario.service.sticky,
            "a server does not know who asks: leave out service.sticky",
        ),
        (
            scenario.clients.destination == DestinationOf::Node,
            "all nodes have one address: leave out clients.destination",
        ),
        (
            scenario.service.cancellation,
            "a service that drops what nobody waits for is not played over sockets",
        ),
        (
            relent_sim::requests(scenario, 0).is_none(),
            "clients that wait for their answers are not played over sockets",
        ),
    ];
    match refusals.iter().find(|(applies, _)| *applies) {
        Some((_, what)) => Err(what),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(scenario: &str, set: &[(&str, &str)]) -> Case {
        let own = |(key, to): &(&str, &str)| ((*key).to_owned(), (*to).to_owned());
        Case {
            scenario: scenario.to_owned(),
            set: set.iter().map(own).collect(),
            policy: "standard".to_owned(),
            seed: 1,
            layers: true,
            block_ms: 0,
        }
    }

    #[test]
    fn scenarios_that_cannot_run_over_sockets_are_rejected() {
        for name in [
            "herd",
            "chain",
            "polling",
            "ethernet",
            "clock-skew",
            "duplicates",
        ] {
            assert!(case(name, &[]).scenario().is_err(), "{name}");
        }
        for name in [
            "blackout",
            "brownout",
            "stall",
            "rate-limit",
            "random-failures",
        ] {
            assert!(case(name, &[]).scenario().is_ok(), "{name}");
        }
        for (key, value) in [
            ("clients.restarts", "[{ at = \"1s\" }]"),
            ("clients.destination", "node"),
            ("clients.classes", "[{ name = \"a\", share = 1 }]"),
            ("service.cancellation", "true"),
        ] {
            let refused = case("stall", &[(key, value)]).scenario().unwrap_err();
            let key = key.rsplit('.').next().unwrap();
            assert!(refused.contains(key) || key == "cancellation", "{refused}");
        }
        let sticky = [("service.nodes", "2"), ("service.sticky", "true")];
        assert!(
            case("stall", &sticky)
                .scenario()
                .unwrap_err()
                .contains("sticky")
        );
        assert!(case("no-such", &[]).scenario().is_err());
        assert!(
            case("stall", &[("service.no_such", "1")])
                .scenario()
                .is_err()
        );
    }

    #[test]
    fn the_policy_gets_the_deadline_and_timeout_of_its_callers() {
        let case = case("stall", &[("clients.attempt_timeout", "700ms")]);
        let scenario = case.scenario().unwrap();
        let policy = case.policy(&scenario).unwrap();
        assert_eq!(policy.deadline(), Some(Duration::from_secs(30)));
        assert_eq!(policy.attempt_timeout(), Some(Duration::from_millis(700)));
    }
}
