use super::*;
use proptest::prelude::*;

const HERD: &str = "clients.arrivals.herd = { clients = 10 }\n";

#[test]
fn an_invalid_scenario_error_names_the_value_and_its_line() {
    for (text, line, part) in [
        (
            "[clients]\narivals.herd = { clients = 1 }",
            Some(2),
            "arivals",
        ),
        (
            "[clients]\narrivals.herd = { clients = 0 }",
            Some(2),
            "at least 1",
        ),
        (
            "[clients]\narrivals.poisson = { rate = -1, for = \"1s\" }",
            Some(2),
            "rate",
        ),
        (
            "[clients]\narrivals.poisson = { rate = nan, for = \"1s\" }",
            Some(2),
            "rate",
        ),
        (
            "[clients]\narrivals.poisson = { rate = 1e6, for = \"24h\" }",
            Some(2),
            "10 million",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nnetwork.one_way = \"0s\"",
            Some(2),
            "1us",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nservice.queue = \"full\"",
            Some(2),
            "unbounded",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nservice.failures = 2",
            Some(2),
            "from 0 to 1",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nchain.layers = 9",
            Some(2),
            "1 to 8",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\n[service.limiter]\nrate = 1e6\nburst = 0",
            Some(4),
            "a burst is at least 1",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\n[service.shedder]\nin_flight = 0",
            Some(3),
            "at least 1 request",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nnetwork.loss = 1.5",
            Some(2),
            "from 0 to 1",
        ),
        (
            "clients.arrivals.bursts = { rate = 1, on = \"1s\", off = \"0s\", for = \"9s\" }",
            Some(1),
            "off: a time above 0",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nclients.backlog = { requests = 0 }",
            Some(2),
            "at least 1 request",
        ),
        (
            "clients.arrivals.closed = { clients = 1, think = \"1s\", for = \"9s\" }\nclients.backlog.requests = 9",
            Some(2),
            "arrivals.poisson",
        ),
        (
            "clients.arrivals.saturated = { clients = 2, for = \"1s\" }",
            Some(1),
            "of the model \"medium\"",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nservice.model.medium = { slot = \"16us\", rate = 3e6, frame = 48 }",
            Some(2),
            "arrivals.saturated",
        ),
        ("x = [", Some(1), ""),
        ("", None, "clients"),
    ] {
        let error = Scenario::parse(text).unwrap_err();
        assert_eq!(error.line(), line, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

const MEDIUM: &str = r#"
    clients.arrivals.saturated = { clients = 2, for = "1s" }
    service.model.medium = { slot = "16us", rate = 3e6, frame = 48 }
"#;

#[test]
fn a_scenario_error_is_plain_text_and_suggests_the_nearest_name() {
    for (text, part) in [
        (
            "clients.arivals = 1",
            "unknown key `arivals`: did you mean `arrivals`?",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nservice = { nodes = 2, balancer = \"round-robbin\" }",
            "unknown word `round-robbin`: did you mean `round-robin`?",
        ),
        (
            "clients.arrivals.herd = { clients = -1 }",
            "expected a whole number from 0 on",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\nservice.failures = \"half\"",
            "expected a number",
        ),
        ("clients.arrivals.herd = {}", "missing key `clients`"),
        ("clients = 5", "integer `5`, expected a table"),
        (
            "clients.arrivals = 5",
            "expected a word, or a table of one key",
        ),
    ] {
        let error = Scenario::parse(text).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_missing_key_has_the_line_of_its_table_only() {
    let without_clients = "[service]\ncapacity = 3\n";
    let without_effect =
        "clients.arrivals.herd = { clients = 1 }\n[[outages]]\nat = \"1s\"\nfor = \"1s\"\n";
    for (text, line) in [(without_clients, None), (without_effect, Some(2))] {
        let error = Scenario::parse(text).unwrap_err();
        assert!(error.to_string().starts_with("missing key `"), "{error}");
        assert_eq!(error.line(), line, "{error}");
    }
}

#[test]
fn an_outage_has_a_recovery_only_if_ten_seconds_of_requests_follow_it() {
    let ends = |lasts: &str| {
        let text = "clients.arrivals.poisson = { rate = 9, for = \"20s\" }\n\
            outages = [{ at = \"5s\", for = \"LASTS\", effect = \"stall\" }]";
        let scenario = Scenario::parse(&text.replace("LASTS", lasts)).unwrap();
        scenario.recovery_begins()
    };
    assert_eq!(ends("5s"), Some(10 * SECOND));
    for too_long in ["5001ms", "14s", "15s"] {
        assert_eq!(ends(too_long), None, "{too_long}");
    }
}

#[test]
fn a_medium_is_used_alone() {
    assert!(Scenario::parse(MEDIUM).is_ok());
    for (key, value) in [
        ("network.loss", "0.1"),
        ("service.capacity", "7"),
        ("chain.layers", "2"),
        ("clients.backlog.requests", "5"),
        (
            "outages",
            "[{ at = \"1s\", for = \"1s\", effect = \"stall\" }]",
        ),
    ] {
        let error = Scenario::parse_with(MEDIUM, &[(key, value)]).unwrap_err();
        assert!(error.to_string().contains("alone"), "{key}: {error}");
    }
    for (key, value) in [
        ("service.model.medium.slot", "0s"),
        ("service.model.medium.rate", "0"),
        ("service.model.medium.frame", "0"),
        ("service.model.medium.frame", "4000000"),
        ("service.model.medium.access", "token"),
        ("clients.arrivals.saturated.clients", "10001"),
        ("clients.arrivals.saturated.for", "24h"),
    ] {
        assert!(
            Scenario::parse_with(MEDIUM, &[(key, value)]).is_err(),
            "{key}"
        );
    }
}

#[test]
fn a_change_of_a_scenario_is_checked_like_the_file() {
    let with = |key, value| Scenario::parse_with(HERD, &[(key, value)]);
    assert_eq!(
        with("service.failures", "0.5").unwrap().service.failures,
        0.5
    );
    assert_eq!(
        with("clients.deadline", "5s").unwrap().clients.deadline,
        5 * SECOND
    );
    let job = with("service.model.job", "{ median = \"1s\", sigma = 1 }").unwrap();
    assert!(matches!(job.service.model, Model::Job { .. }));
    for (key, value, part) in [
        ("service.failurs", "0.5", "failurs"),
        ("service.failures", "much", "failures"),
        ("service.failures", "7", "from 0 to 1"),
        ("service.capacity.x", "7", "capacity"),
        (
            "clients.arrivals.closed.clients",
            "7",
            "give the whole value",
        ),
        ("", "1", "unknown key"),
    ] {
        let error = with(key, value).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let arrivals = "{ closed = { clients = 7, think = \"1s\", for = \"1s\" } }";
    assert!(with("clients.arrivals", arrivals).is_ok());
    let outage = "[[outages]]\nat = \"1s\"\nfor = \"1s\"\neffect = \"stall\"\n";
    let text = format!("{HERD}{outage}");
    let longer = Scenario::parse_with(&text, &[("outages.0.for", "9s")]).unwrap();
    assert_eq!(longer.outages_end(), Some(10 * SECOND));
    assert!(Scenario::parse_with(&text, &[("outages.1.for", "9s")]).is_err());
    assert!(Scenario::parse_with(&text, &[("outages.0.at", "25h")]).is_err());
}

/// Too many requests (more than ten million) are rejected, in either order of the changes.
#[test]
fn changes_of_a_scenario_are_validated_together() {
    let text = "clients.arrivals.poisson = { rate = 100, for = \"1h\" }";
    let (rate, short) = (
        ("clients.arrivals.poisson.rate", "10000"),
        ("clients.arrivals.poisson.for", "10s"),
    );
    for changes in [[rate, short], [short, rate]] {
        assert!(Scenario::parse_with(text, &changes).is_ok());
    }
    let other = ("network.one_way", "20ms");
    let blamed = |changes: &[(&str, &str)]| {
        let error = Scenario::parse_with(text, changes).unwrap_err();
        error.to_string().split('=').next().unwrap().to_owned()
    };
    assert_eq!(
        blamed(&[other, rate, other]),
        "clients.arrivals.poisson.rate"
    );
    let loss = ("network.loss", "2");
    assert_eq!(blamed(&[rate, short, loss]), "network.loss");
}

proptest! {
    #[test]
    fn the_scenario_reader_never_panics(text in "\\PC{0,80}", key in "\\PC{0,20}", value in "\\PC{0,20}") {
        let _ = Scenario::parse(&text);
        let _ = Scenario::parse_with(HERD, &[(&key, &value)]);
    }
}

#[test]
fn the_limit_of_a_prompt_request_follows_the_service_time() {
    let prompt = |service: &str| {
        Scenario::parse(&format!("{HERD}{service}"))
            .unwrap()
            .prompt()
    };
    assert_eq!(prompt(""), SECOND, "a quick one has a second");
    // With a mean of 2 s, one in a thousand takes 13.8 s or more.
    let slow = prompt("service = { capacity = 5, workers = 10 }");
    assert_eq!(slow / 100_000_000, 138);
    let constant = prompt("service = { capacity = 5, workers = 10, time = \"constant\" }");
    assert_eq!(constant, 2 * SECOND + 1_000_000);
}

#[test]
fn single_processes_can_be_restarted() {
    let text = "clients.restarts = [{ at = \"1s\", processes = [3] }]\nclients.processes = 4\n";
    let scenario = Scenario::parse(&format!("{HERD}{text}")).unwrap();
    assert_eq!(scenario.clients.restarts[0].processes, [3]);
    let error = Scenario::parse(&format!("{HERD}{}", text.replace("[3]", "[4]"))).unwrap_err();
    assert!(
        error.to_string().contains("below clients.processes"),
        "{error}"
    );
}
