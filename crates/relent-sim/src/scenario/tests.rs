use super::*;
use proptest::prelude::*;

const HERD: &str = "clients.arrivals.herd = { clients = 10 }\n";

#[test]
fn every_error_names_the_value_and_its_line() {
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
            "clients.arrivals.herd = { clients = 1 }\n[service.limiter]\nrate = 1e6\nretry_after = \"slots\"\nhorizon = \"1h\"",
            Some(5),
            "10 million slots",
        ),
        (
            "clients.arrivals.herd = { clients = 1 }\n[service.shedder]\nin_flight = 0",
            Some(3),
            "at least 1 request",
        ),
        ("x = [", Some(1), ""),
        ("", None, "clients"),
    ] {
        let error = Scenario::parse(text).unwrap_err();
        assert_eq!(error.line(), line, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_change_is_checked_like_the_file() {
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
        ("", "1", "unknown field"),
    ] {
        let error = with(key, value).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let outage = "[[outages]]\nat = \"1s\"\nfor = \"1s\"\neffect = \"stall\"\n";
    let text = format!("{HERD}{outage}");
    let longer = Scenario::parse_with(&text, &[("outages.0.for", "9s")]).unwrap();
    assert_eq!(longer.outages_end(), Some(10 * SECOND));
    assert!(Scenario::parse_with(&text, &[("outages.1.for", "9s")]).is_err());
    assert!(Scenario::parse_with(&text, &[("outages.0.at", "25h")]).is_err());
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,80}", key in "\\PC{0,20}", value in "\\PC{0,20}") {
        let _ = Scenario::parse(&text);
        let _ = Scenario::parse_with(HERD, &[(&key, &value)]);
    }
}
