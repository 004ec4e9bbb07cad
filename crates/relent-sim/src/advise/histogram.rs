//! Quantiles from a histogram in the text format of Prometheus.
//!
//! Source: "Exposition formats" and "Histograms and summaries" of the Prometheus documentation; within a bucket
//! values are taken to be spread evenly, as `histogram_quantile` does.

use super::latency::{Latency, SHARES};
use crate::scenario::{SECOND, ScenarioError};

/// A quantile counts if at least so many observations are beyond it.
const BEYOND: f64 = 10.0;

/// Labels with their values.
type Labels<'a> = Vec<(&'a str, String)>;
/// A series: its name, its labels, its value.
type Sample<'a> = (&'a str, Labels<'a>, f64);

/// Reads how long a service takes from a histogram of seconds (of milliseconds if its name ends in `_ms` or
/// `_milliseconds`) in the text format of Prometheus.
///
/// `metric` names one, with labels if it should be only some of its series, such as
/// `http_request_duration_seconds{route="/pay"}`; it may be left out where there is only one. Series that differ
/// in other labels are added up.
///
/// ```
/// let text = r#"
/// ## TYPE rpc_seconds histogram
/// rpc_seconds_bucket{le="0.01"} 500
/// rpc_seconds_bucket{le="0.1"} 990
/// rpc_seconds_bucket{le="1"} 1000
/// rpc_seconds_bucket{le="+Inf"} 1000
/// "#;
/// let latency = relent_sim::advise::histogram(text, None)?;
/// assert!((latency.quantile(0.5) - 10e6).abs() < 1.0, "10 ms");
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
///
/// # Errors
/// No such histogram, or several without a name; a line of it that cannot be read, with its number; counts that
/// contradict each other; too few observations.
pub fn histogram(text: &str, metric: Option<&str>) -> Result<Latency, ScenarioError> {
    let nowhere = |message: String| ScenarioError::at(text, None, &message);
    let wanted = match metric {
        None => None,
        Some(metric) => Some(selector(metric).ok_or_else(|| {
            nowhere(format!(
                "{metric}: a name, or one with labels, such as http_request_duration_seconds{{route=\"/pay\"}}"
            ))
        })?),
    };
    let mut names: Vec<&str> = Vec::new();
    // The upper bound, the count, and the line of each.
    let mut buckets: Vec<(f64, f64, usize)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_bucket = |name: &str| name.ends_with("_bucket");
        let name = line.split(['{', ' ', '\t']).next().unwrap_or_default();
        if !is_bucket(name) {
            continue;
        }
        let wrong = |message: &str| ScenarioError::at(text, Some(index), message);
        let (name, labels, count) = sample(line)
            .ok_or_else(|| wrong("a bucket is written NAME_bucket{le=\"SECONDS\"} COUNT"))?;
        let name = name.trim_end_matches("_bucket");
        if let Some((metric, only)) = &wanted {
            let has = |label: &(&str, String)| labels.contains(label);
            if name != *metric {
                names.push(name);
                continue;
            }
            if !only.iter().all(has) {
                continue;
            }
        }
        if !names.contains(&name) {
            names.push(name);
        }
        let le = labels.iter().find(|(label, _)| *label == "le");
        let le = le.and_then(|(_, le)| match le.as_str() {
            "+Inf" | "Inf" => Some(f64::INFINITY),
            number => number
                .parse::<f64>()
                .ok()
                .filter(|le| le.is_finite() && *le > 0.0),
        });
        let le = le.ok_or_else(|| {
            wrong("a bucket has an upper bound above 0, such as le=\"0.25\", or le=\"+Inf\"")
        })?;
        if !(count.is_finite() && count >= 0.0) {
            return Err(wrong("a count is a number from 0"));
        }
        match buckets.iter_mut().find(|(other, ..)| *other == le) {
            Some(bucket) => bucket.1 += count,
            None => buckets.push((le, count, index)),
        }
    }
    names.dedup();
    names.sort_unstable();
    names.dedup();
    if wanted.is_none() && names.len() > 1 {
        return Err(nowhere(format!(
            "there are several histograms: name one with --metric, of {}",
            names.join(", ")
        )));
    }
    if buckets.is_empty() {
        return Err(nowhere(match (metric, names.as_slice()) {
            (Some(metric), [_, ..]) => format!(
                "no histogram {metric}: there are {}, perhaps with other labels",
                names.join(", ")
            ),
            _ => "no histogram: it has lines such as rpc_seconds_bucket{le=\"0.25\"} 4711; a summary and a \
                  native histogram cannot be read"
                .to_owned(),
        }));
    }
    let name = wanted.map_or_else(
        || names.first().copied().unwrap_or_default(),
        |(name, _)| name,
    );
    let unit = match name {
        name if name.ends_with("_ms") || name.ends_with("_milliseconds") => 1e6,
        _ => SECOND as f64,
    };
    let points = quantiles(text, &mut buckets, unit)?;
    Latency::new(points, format!("the histogram {}", metric.unwrap_or(name)))
        .map_err(|(key, accepted)| nowhere(format!("{name}: {key} of its buckets: {accepted}")))
}

/// The shares that so many observations can tell of, each with its time.
fn quantiles(
    text: &str,
    buckets: &mut [(f64, f64, usize)],
    unit: f64,
) -> Result<Vec<(f64, f64)>, ScenarioError> {
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    if let Some(pair) = buckets.windows(2).find(|pair| pair[0].1 > pair[1].1) {
        return Err(ScenarioError::at(
            text,
            Some(pair[1].2),
            "the counts of a histogram add up: a bucket has no fewer than the one below it",
        ));
    }
    let total = match buckets.last() {
        Some((le, count, _)) if le.is_infinite() => *count,
        _ => {
            return Err(ScenarioError::at(
                text,
                None,
                "the histogram has no bucket le=\"+Inf\", which counts all observations",
            ));
        }
    };
    let quantile = |share: f64| {
        let rank = share * total;
        let index = buckets.partition_point(|(_, count, _)| *count < rank);
        let (high, count, _) = buckets.get(index).copied()?;
        let (low, before) = match index.checked_sub(1).and_then(|below| buckets.get(below)) {
            Some((low, before, _)) => (*low, *before),
            None => (0.0, 0.0),
        };
        // What is beyond the last bound is not known.
        (high.is_finite() && count > before)
            .then(|| (low + (high - low) * (rank - before) / (count - before)) * unit)
    };
    let known = SHARES
        .iter()
        .filter(|(share, ..)| total * (1.0 - share) >= BEYOND);
    let points: Vec<(f64, f64)> = known
        .filter_map(|(share, ..)| Some((*share, quantile(*share)?)))
        .collect();
    if points.len() < 2 {
        return Err(ScenarioError::at(
            text,
            None,
            &format!(
                "{total} observations tell too little: from 100 on, of which most are below the last bound"
            ),
        ));
    }
    Ok(points)
}

/// A name, with labels or without.
fn selector(text: &str) -> Option<(&str, Labels<'_>)> {
    let (name, labels, rest) = head(text.trim())?;
    let name = name.strip_suffix("_bucket").unwrap_or(name);
    rest.is_empty().then_some((name, labels))
}

/// A line: its name, its labels, its value. A time and an exemplar behind it are left out.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, labels, rest) = head(line)?;
    let value = rest.split_whitespace().next()?;
    Some((name, labels, value.parse().ok()?))
}

/// The name, the labels in their braces, and what follows.
fn head(line: &str) -> Option<(&str, Labels<'_>, &str)> {
    let end = line.find(['{', ' ', '\t']).unwrap_or(line.len());
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if name.is_empty() {
        return None;
    }
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner.trim_start();
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once('=')?;
            let mut value = value.trim_start().strip_prefix('"')?.char_indices();
            let text = value.as_str();
            let mut read = String::new();
            rest = loop {
                match value.next()? {
                    (at, '"') => break text.get(at + 1..)?.trim_start(),
                    (_, '\\') => match value.next()?.1 {
                        'n' => read.push('\n'),
                        other => read.push(other),
                    },
                    (_, other) => read.push(other),
                }
            };
            labels.push((label.trim(), read));
            rest = match rest.strip_prefix(',') {
                Some(more) => more.trim_start(),
                None if rest.starts_with('}') => rest,
                None => return None,
            };
        }
        rest = &rest[1..];
    }
    Some((name, labels, rest.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO_ROUTES: &str = r#"# HELP http_seconds how long
# TYPE http_seconds histogram
http_seconds_bucket{route="/a",le="0.1"} 900 1700000000000
http_seconds_bucket{route="/a",le="1"} 1000
http_seconds_bucket{route="/a",le="+Inf"} 1000
http_seconds_sum{route="/a"} 80
http_seconds_count{route="/a"} 1000
http_seconds_bucket{le="0.1",route="/b, \"x\"}"} 0
http_seconds_bucket{le="1",route="/b, \"x\"}"} 1000 # {trace_id="1"} 0.4
http_seconds_bucket{le="+Inf",route="/b, \"x\"}"} 1000
up 1
"#;

    #[test]
    fn series_are_added_up_unless_labels_are_named() {
        let all = histogram(TWO_ROUTES, None).unwrap();
        // The thousandth of two thousand: a hundred of 1,100 into the second bucket.
        let median = 0.1 + 0.9 * 100.0 / 1100.0;
        assert!((all.quantile(0.5) - median * 1e9).abs() < 1e3);
        let one = histogram(TWO_ROUTES, Some("http_seconds{route=\"/a\"}")).unwrap();
        assert!(
            (one.quantile(0.5) - 1e9 / 18.0).abs() < 1e3,
            "of 900 in 0.1 s"
        );
        let other = histogram(TWO_ROUTES, Some("http_seconds{route=\"/b, \\\"x\\\"}\"}"));
        assert!((other.unwrap().quantile(0.5) - 0.55e9).abs() < 1e3);
    }

    #[test]
    fn a_name_may_say_that_it_counts_milliseconds() {
        let text = TWO_ROUTES.replace("http_seconds", "http_ms");
        let latency = histogram(&text, None).unwrap();
        assert!(latency.quantile(0.5) < 1e6, "below a millisecond");
    }

    #[test]
    fn what_is_wrong_has_its_line() {
        for (from, to, line, part) in [
            ("le=\"0.1\"} 900", "le=\"x\"} 900", Some(3), "upper bound"),
            ("le=\"0.1\"} 900", "le=\"0.1\" 900", Some(3), "is written"),
            ("le=\"0.1\"} 900", "le=\"0.1\"} many", Some(3), "is written"),
            ("le=\"0.1\"} 900", "le=\"0.1\"} NaN", Some(3), "from 0"),
            ("le=\"0.1\"} 900", "le=\"0.1\"} 9000", Some(4), "no fewer"),
            ("_bucket", "_sums", None, "no histogram"),
            ("+Inf", "2", None, "+Inf"),
            ("up 1", "rpc_bucket{le=\"1\"} 1", None, "several histograms"),
        ] {
            let error = histogram(&TWO_ROUTES.replace(from, to), None).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.line(), line, "{to}: {text}");
            assert!(text.contains(part), "{to}: {text}");
        }
        let few = TWO_ROUTES.replace("000", "").replace("900", "1");
        let error = histogram(&few, None).unwrap_err().to_string();
        assert!(error.contains("too little"), "{error}");
        let error = histogram(TWO_ROUTES, Some("htp_seconds")).unwrap_err();
        assert!(
            error.to_string().contains("there are http_seconds"),
            "{error}"
        );
        for metric in ["", "a{", "a{b=c}", "a b"] {
            assert!(histogram(TWO_ROUTES, Some(metric)).is_err(), "{metric}");
        }
    }

    #[test]
    fn a_tail_beyond_the_last_bound_is_not_made_up() {
        let text = "a_seconds_bucket{le=\"0.1\"} 5000\na_seconds_bucket{le=\"0.5\"} 9500\n\
            a_seconds_bucket{le=\"+Inf\"} 10000\n";
        let latency = histogram(text, None).unwrap();
        let given: Vec<_> = latency.given().map(|(name, _)| name).collect();
        assert_eq!(given, ["p50", "p75", "p90", "p95"]);
        assert!(latency.quantile(0.999) > 0.5e9);
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_panics(text in "(a_bucket|a|\\{|\\}|le=|\"|\\\\|,| |\n|[0-9]|\\+Inf|é){0,60}") {
            let _ = histogram(&text, None);
            let _ = histogram(&text, Some(&text));
        }
    }
}
