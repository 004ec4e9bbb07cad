//! Quantiles from a histogram in the text format of Prometheus.
//!
//! Source: "Exposition formats" and "Histograms and summaries" of the Prometheus documentation. Within a bucket,
//! values are assumed to be evenly distributed, as in `histogram_quantile`.

use std::collections::{BTreeMap, BTreeSet};

use super::latency::{Latency, SHARES};
use crate::scenario::{SECOND, ScenarioError};

/// A quantile counts if at least this many observations are beyond it.
const MIN_OBSERVATIONS_BEYOND: f64 = 10.0;
/// The share by which a bucket may count less than the one below it: sums of floating-point numbers, such as results of
/// `increase(..)`, are not exact.
const ROUNDING_SHARE: f64 = 1e-9;
/// The most values of a label that are shown.
const MAX_SHOWN_VALUES: usize = 8;

/// Labels with their values.
type Labels<'a> = Vec<(&'a str, String)>;
/// A series: its name, its labels, its value.
type Sample<'a> = (&'a str, Labels<'a>, f64);

/// The unit of the bounds of a histogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl TimeUnit {
    /// The unit at the end of a metric's name.
    fn of(name: &str) -> Option<Self> {
        let (_, last) = name.rsplit_once('_')?;
        match last {
            "seconds" => Some(Self::Seconds),
            "ms" | "millis" | "milliseconds" => Some(Self::Milliseconds),
            "us" | "micros" | "microseconds" => Some(Self::Microseconds),
            "ns" | "nanos" | "nanoseconds" => Some(Self::Nanoseconds),
            _ => None,
        }
    }

    const fn nanos(self) -> f64 {
        match self {
            Self::Seconds => SECOND as f64,
            Self::Milliseconds => 1e6,
            Self::Microseconds => 1e3,
            Self::Nanoseconds => 1.0,
        }
    }
}

/// The histogram to read from a text, and how to read it.
#[derive(Clone, Copy, Default, Debug)]
pub struct HistogramOptions<'a> {
    /// Its name, with labels to select some of its series, such as `http_request_duration_seconds{route="/pay"}`.
    /// Optional if there is only one histogram.
    pub metric: Option<&'a str>,
    /// The unit of its bounds, if its name does not end with one.
    pub unit: Option<TimeUnit>,
    /// An earlier scrape of the same metrics: only observations since then count. A series with a smaller count than
    /// in the earlier scrape, or missing there, was restarted and counts in full.
    pub since: Option<&'a str>,
}

/// Reads the latency of a service from a histogram in the text format of Prometheus. Series that differ in labels
/// that `metric` does not name are added up.
///
/// ```
/// use relent_sim::advise::{HistogramOptions, histogram};
///
/// let text = r#"
/// ## TYPE rpc_seconds histogram
/// rpc_seconds_bucket{le="0.01"} 500
/// rpc_seconds_bucket{le="0.1"} 990
/// rpc_seconds_bucket{le="1"} 1000
/// rpc_seconds_bucket{le="+Inf"} 1000
/// "#;
/// let latency = histogram(text, HistogramOptions::default())?;
/// assert!((latency.quantile(0.5) - 10e6).abs() < 1.0, "10 ms");
/// # Ok::<(), relent_sim::ScenarioError>(())
/// ```
///
/// # Errors
/// No such histogram, or several and no name, also in the earlier scrape; a line of it that cannot be parsed, with its
/// number; contradictory counts; no unit; too few observations.
pub fn histogram(text: &str, options: HistogramOptions<'_>) -> Result<Latency, ScenarioError> {
    let HistogramOptions {
        metric,
        unit,
        since,
    } = options;
    let error_without_line = |message: String| ScenarioError::at(text, None, &message);
    let wanted = match metric {
        None => None,
        Some(metric) => Some(selector(metric).ok_or_else(|| {
            error_without_line(format!(
                "{metric}: a name, or one with labels, such as http_request_duration_seconds{{route=\"/pay\"}}"
            ))
        })?),
    };
    let mut found = FoundHistogram::read(text, wanted.as_ref())?;
    let name = found.name;
    let unit = unit.or_else(|| TimeUnit::of(name)).ok_or_else(|| {
        error_without_line(format!(
            "{name}: its name does not end with a unit of time, such as _seconds or _ms, so give the unit of its bounds"
        ))
    })?;
    if let Some(earlier) = since {
        let earlier = FoundHistogram::read(earlier, wanted.as_ref())
            .map_err(|error| error.about("the earlier metrics"))?;
        found.count_since(&earlier);
    }
    let buckets = found.added_up(text)?;
    let mut points = quantiles(text, &buckets, unit.nanos())?;
    let source = format!("the histogram {}", metric.unwrap_or(name));
    let latency = |points: &[(f64, f64)], source: String| {
        Latency::new(points.to_vec(), source).map_err(|(key, accepted)| {
            error_without_line(format!("{name}: {key} of its buckets: {accepted}"))
        })
    };
    let guessed = latency(&points, source.clone())?;
    // The first quantile above the last bound is at least that bound, whatever the lower quantiles suggest.
    match above(&buckets) {
        Some((share, called, last)) if guessed.quantile(share) < last * unit.nanos() => {
            points.push((share, last * unit.nanos()));
            let source =
                format!("{source} (its {called} is above the last bound, and taken for it)");
            latency(&points, source)
        }
        _ => Ok(guessed),
    }
}

/// The first quantile above the last bound, its name, and that bound.
fn above(buckets: &[(f64, f64, usize)]) -> Option<(f64, &'static str, f64)> {
    let (_, total, _) = *buckets.last()?;
    let (last, counted, _) = *buckets.iter().rev().find(|(le, ..)| le.is_finite())?;
    let (share, _, name) = SHARES.iter().find(|(share, ..)| {
        share * total > counted && total * (1.0 - share) >= MIN_OBSERVATIONS_BEYOND
    })?;
    Some((*share, name, last))
}

/// The number of observations that do not exceed a bound.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    count: f64,
    /// The number of lines with this bound: one for each series, unless one file has the texts of several processes.
    lines: u32,
    /// The index of the first line.
    line: usize,
}

/// The buckets of a series by their upper bounds, as bits: for numbers from 0 on, bits and numbers have the same
/// order.
type Buckets = BTreeMap<u64, Bucket>;

/// A histogram that was found.
struct FoundHistogram<'a> {
    name: &'a str,
    /// By labels, without `le`.
    series: BTreeMap<Labels<'a>, Buckets>,
}

impl<'a> FoundHistogram<'a> {
    fn read(text: &'a str, wanted: Option<&(&str, Labels<'_>)>) -> Result<Self, ScenarioError> {
        let mut names: BTreeSet<&str> = BTreeSet::new();
        let mut series: BTreeMap<Labels<'a>, Buckets> = BTreeMap::new();
        // The values that the selected labels have instead.
        let mut others: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            let name = line.split(['{', ' ', '\t']).next().unwrap_or_default();
            let Some(name) = name.strip_suffix("_bucket") else {
                continue;
            };
            // Other metrics may end with "_bucket".
            if !line.contains("le=") {
                continue;
            }
            names.insert(name);
            if wanted.is_some_and(|(wanted, _)| name != *wanted) {
                continue;
            }
            let wrong = |message: &str| ScenarioError::at(text, Some(index), message);
            let (_, mut labels, count) = sample(line)
                .ok_or_else(|| wrong("a bucket is written NAME_bucket{le=\"SECONDS\"} COUNT"))?;
            let mut matches = true;
            for (label, value) in wanted.iter().flat_map(|(_, only)| only) {
                let is = labels.iter().find(|(other, _)| other == label);
                if is.is_none_or(|(_, is)| is != value) {
                    matches = false;
                    let is = is.map(|(_, is)| is.clone());
                    others.entry(label).or_default().extend(is);
                }
            }
            if !matches {
                continue;
            }
            let le = labels.iter().position(|(label, _)| *label == "le");
            let le = le.map(|le| labels.swap_remove(le).1);
            let le = le.and_then(|le| le.parse::<f64>().ok().filter(|le| *le >= 0.0));
            let le = le.ok_or_else(|| {
                wrong("a bucket has an upper bound from 0 on, such as le=\"0.25\", or le=\"+Inf\"")
            })?;
            if !(count.is_finite() && count >= 0.0) {
                return Err(wrong("a count is a number from 0"));
            }
            labels.sort_unstable();
            let buckets = series.entry(labels).or_default();
            // Adding 0 turns -0 into 0.
            let bucket = buckets.entry((le + 0.0).to_bits()).or_insert(Bucket {
                count: 0.0,
                lines: 0,
                line: index,
            });
            bucket.count += count;
            bucket.lines += 1;
        }
        let error_without_line = |message: String| Err(ScenarioError::at(text, None, &message));
        let list = names.iter().copied().collect::<Vec<_>>().join(", ");
        match (wanted, names.first()) {
            (None, Some(_)) if names.len() > 1 => error_without_line(format!(
                "there are several histograms, so name one of {list}"
            )),
            (None, Some(name)) => Ok(Self { name, series }),
            (Some((wanted, _)), Some(_)) => match names.iter().find(|name| *name == wanted) {
                Some(name) if !series.is_empty() => Ok(Self { name, series }),
                Some(_) => error_without_line(format!(
                    "{wanted} has no series with these labels: {}",
                    describe_labels(&others)
                )),
                None => error_without_line(format!("no histogram {wanted}: there are {list}")),
            },
            (_, None) => error_without_line(
                "no histogram: it has lines such as rpc_seconds_bucket{le=\"0.25\"} 4711; a summary and a \
                 native histogram cannot be read"
                    .to_owned(),
            ),
        }
    }

    /// Subtracts the earlier counts.
    fn count_since(&mut self, earlier: &FoundHistogram<'_>) {
        for (labels, buckets) in &mut self.series {
            let Some(before) = earlier.series.get(labels) else {
                continue;
            };
            // A counter that is smaller than before was restarted, together with the others of its process.
            let is_continued = buckets
                .iter()
                .all(|(le, now)| before.get(le).is_some_and(|was| was.count <= now.count));
            if is_continued {
                for (le, now) in buckets {
                    now.count -= before.get(le).map_or(0.0, |was| was.count);
                }
            }
        }
    }

    /// The counts of all series by upper bounds, each with the index of a line.
    fn added_up(&self, text: &str) -> Result<Vec<(f64, f64, usize)>, ScenarioError> {
        let mut all = Buckets::new();
        for (le, bucket) in self.series.values().flatten() {
            let sum = all.entry(*le).or_insert(Bucket {
                count: 0.0,
                lines: 0,
                line: bucket.line,
            });
            sum.count += bucket.count;
            sum.lines += bucket.lines;
        }
        let most = all.values().map(|bucket| bucket.lines).max();
        if let Some(less) = all.values().find(|bucket| Some(bucket.lines) != most) {
            return Err(ScenarioError::at(
                text,
                Some(less.line),
                "not all series have a bucket with this bound, so that they cannot be added up: name one of them by \
                 its labels",
            ));
        }
        let buckets = all.into_iter();
        let buckets = buckets.map(|(le, bucket)| (f64::from_bits(le), bucket.count, bucket.line));
        Ok(buckets.collect())
    }
}

/// Labels with their values, as text.
fn describe_labels(labels: &BTreeMap<&str, BTreeSet<String>>) -> String {
    let words = labels.iter().map(|(label, values)| {
        let shown: Vec<String> = values
            .iter()
            .take(MAX_SHOWN_VALUES)
            .map(|value| format!("{value:?}"))
            .collect();
        match (shown.is_empty(), values.len() > MAX_SHOWN_VALUES) {
            (true, _) => format!("it has no {label}"),
            (false, true) => format!("{label} is {} and others", shown.join(", ")),
            (false, false) => format!("{label} is {}", shown.join(", ")),
        }
    });
    words.collect::<Vec<_>>().join("; ")
}

/// The shares that the observations can determine, each with its time.
fn quantiles(
    text: &str,
    buckets: &[(f64, f64, usize)],
    unit: f64,
) -> Result<Vec<(f64, f64)>, ScenarioError> {
    if let Some(pair) = buckets
        .windows(2)
        .find(|pair| pair[0].1 > pair[1].1 * (1.0 + ROUNDING_SHARE))
    {
        return Err(ScenarioError::at(
            text,
            Some(pair[1].2),
            "the counts of a histogram add up: a bucket has no fewer than the one below it",
        ));
    }
    let error_without_line = |message: String| Err(ScenarioError::at(text, None, &message));
    let total = match buckets.last() {
        Some((le, count, _)) if le.is_infinite() => *count,
        _ => {
            return error_without_line(
                "the histogram has no bucket le=\"+Inf\", which counts all observations".to_owned(),
            );
        }
    };
    // The fewest observations for the 90th percentile, without which a timeout cannot be estimated.
    if total * 0.1 < MIN_OBSERVATIONS_BEYOND {
        return error_without_line(format!(
            "{total} observations are too few: at least 100 are needed"
        ));
    }
    let below = buckets.iter().rev().find(|(le, ..)| le.is_finite());
    let (last, counted) = below.map_or((0.0, 0.0), |(le, count, _)| (*le, *count));
    if counted < 0.9 * total {
        return error_without_line(format!(
            "{:.0} % of the observations are above the last bound ({last}) by an unknown amount: describe \
             the service by [latency], or take a histogram that goes further",
            100.0 * (1.0 - counted / total)
        ));
    }
    let quantile = |share: f64| {
        let rank = share * total;
        let index = buckets.partition_point(|(_, count, _)| *count < rank);
        let (high, count, _) = buckets.get(index).copied()?;
        let (low, before) = match index.checked_sub(1).and_then(|below| buckets.get(below)) {
            Some((low, before, _)) => (*low, *before),
            None => (0.0, 0.0),
        };
        // The values beyond the last bound are unknown.
        (high.is_finite() && count > before)
            .then(|| (low + (high - low) * (rank - before) / (count - before)) * unit)
    };
    let known = SHARES.iter().filter(|(share, ..)| {
        total * (1.0 - share) >= MIN_OBSERVATIONS_BEYOND * (1.0 - ROUNDING_SHARE)
    });
    let points = known.filter_map(|(share, ..)| Some((*share, quantile(*share)?)));
    Ok(points.collect())
}

/// A name, with labels or without.
fn selector(text: &str) -> Option<(&str, Labels<'_>)> {
    let (name, labels, rest) = head(text.trim())?;
    let name = name.strip_suffix("_bucket").unwrap_or(name);
    rest.is_empty().then_some((name, labels))
}

/// A line: its name, its labels, its value. Skips a timestamp and an exemplar after them.
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

    fn read(text: &str, metric: Option<&str>) -> Result<Latency, ScenarioError> {
        let options = HistogramOptions {
            metric,
            ..HistogramOptions::default()
        };
        histogram(text, options)
    }

    fn counts(name: &str, labels: &str, counts: &[(&str, u64)]) -> String {
        let lines = counts
            .iter()
            .map(|(le, count)| format!("{name}_bucket{{{labels}le=\"{le}\"}} {count}\n"));
        lines.collect()
    }

    #[test]
    fn histogram_series_are_added_up_unless_labels_select_one() {
        let all = read(TWO_ROUTES, None).unwrap();
        // Number 1,000 of 2,000: 100 of 1,100 into the second bucket.
        let median = 0.1 + 0.9 * 100.0 / 1100.0;
        assert!((all.quantile(0.5) - median * 1e9).abs() < 1e3);
        let one = read(TWO_ROUTES, Some("http_seconds{route=\"/a\"}")).unwrap();
        assert!(
            (one.quantile(0.5) - 1e9 / 18.0).abs() < 1e3,
            "of 900 in 0.1 s"
        );
        let other = read(TWO_ROUTES, Some("http_seconds{route=\"/b, \\\"x\\\"}\"}"));
        assert!((other.unwrap().quantile(0.5) - 0.55e9).abs() < 1e3);
    }

    #[test]
    fn the_histogram_unit_is_in_the_metric_name_or_must_be_given() {
        let median = |name: &str, unit| {
            let text = TWO_ROUTES.replace("http_seconds", name);
            let options = HistogramOptions {
                unit,
                ..HistogramOptions::default()
            };
            histogram(&text, options).map(|latency| latency.quantile(0.5))
        };
        let seconds = median("http_seconds", None).unwrap();
        for (name, unit, nanos) in [
            ("http_ms", None, 1e6),
            ("http_milliseconds", None, 1e6),
            ("http_latency", Some(TimeUnit::Milliseconds), 1e6),
            ("http_latency", Some(TimeUnit::Seconds), 1e9),
            // The caller's unit overrides the name.
            ("http_ms", Some(TimeUnit::Seconds), 1e9),
        ] {
            let found = median(name, unit).unwrap();
            assert!((found / seconds - nanos / 1e9).abs() < 1e-9, "{name}");
        }
        let micros = TWO_ROUTES.replace("http_seconds", "http_microseconds");
        let micros = micros.replace("le=\"0.1\"", "le=\"100000\"");
        let micros = micros.replace("le=\"1\"", "le=\"1000000\"");
        let found = read(&micros, None).unwrap().quantile(0.5);
        assert!((found / seconds - 1.0).abs() < 1e-9);
        for name in ["http_latency", "http_response_size_bytes"] {
            let error = median(name, None).unwrap_err().to_string();
            assert!(error.contains("the unit of its bounds"), "{error}");
        }
    }

    /// The default buckets of OpenTelemetry begin with 0.
    #[test]
    fn a_histogram_bucket_may_have_the_bound_0_and_no_observations() {
        let text = counts(
            "rpc_milliseconds",
            "",
            &[("0", 0), ("5", 500), ("10", 990), ("+Inf", 1000)],
        );
        let latency = read(&text, None).unwrap();
        assert!((latency.quantile(0.5) - 5e6).abs() < 1.0);
    }

    #[test]
    fn histogram_counts_may_have_rounding_errors() {
        let text = "a_seconds_bucket{le=\"0.1\"} 1000.0000000000001\n\
            a_seconds_bucket{le=\"0.2\"} 1e3\na_seconds_bucket{le=\"+Inf\"} 1.001e3\n";
        assert!(read(text, None).is_ok());
    }

    #[test]
    fn histogram_series_with_different_buckets_are_rejected() {
        let (one, other) = (
            counts(
                "a_seconds",
                "pod=\"1\",",
                &[("0.1", 10), ("1", 1000), ("+Inf", 1000)],
            ),
            counts(
                "a_seconds",
                "pod=\"2\",",
                &[("0.2", 500), ("1", 1000), ("+Inf", 1000)],
            ),
        );
        let text = one + &other;
        let error = read(&text, None).unwrap_err();
        assert_eq!(error.line(), Some(1), "{error}");
        assert!(error.to_string().contains("not all series"), "{error}");
        assert!(read(&text, Some("a_seconds{pod=\"2\"}")).is_ok());
    }

    #[test]
    fn only_observations_since_the_earlier_scrape_count() {
        let at = |labels: &str, fast: u64, slow: u64| {
            counts(
                "a_seconds",
                labels,
                &[("0.1", fast), ("1", fast + slow), ("+Inf", fast + slow)],
            )
        };
        // Of the first pod 9,000 slow ones came before and 1,000 fast ones after; the second was restarted, and the
        // third is new.
        let before = at("pod=\"1\",", 0, 9000) + &at("pod=\"2\",", 5000, 5000);
        let after =
            at("pod=\"1\",", 1000, 9000) + &at("pod=\"2\",", 0, 900) + &at("pod=\"3\",", 100, 0);
        let options = HistogramOptions {
            since: Some(&before),
            ..HistogramOptions::default()
        };
        let latency = histogram(&after, options).unwrap();
        // 1,100 of 2,000 are fast.
        assert!((latency.quantile(0.5) - 1e9 / 11.0).abs() < 1e3);
        let damaged = before.replace("5000", "many");
        for (since, part) in [
            (damaged.as_str(), "the earlier metrics: a bucket is written"),
            ("up 1", "the earlier metrics: no histogram"),
        ] {
            let options = HistogramOptions {
                since: Some(since),
                ..HistogramOptions::default()
            };
            let error = histogram(&after, options).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let nothing = HistogramOptions {
            since: Some(&after),
            ..HistogramOptions::default()
        };
        let error = histogram(&after, nothing).unwrap_err().to_string();
        assert!(error.contains("0 observations"), "{error}");
    }

    #[test]
    fn histogram_errors_name_their_line() {
        for (from, to, line, part) in [
            ("le=\"0.1\"} 900", "le=\"x\"} 900", Some(3), "upper bound"),
            ("le=\"0.1\"} 900", "le=\"-1\"} 900", Some(3), "upper bound"),
            ("le=\"0.1\"} 900", "le=\"0.1\" 900", Some(3), "is written"),
            ("le=\"0.1\"} 900", "le=\"0.1\"} many", Some(3), "is written"),
            ("le=\"0.1\"} 900", "le=\"0.1\"} NaN", Some(3), "from 0"),
            ("le=\"0.1\"} 900", "le=\"0.1\"} 9000", Some(4), "no fewer"),
            ("_bucket", "_sums", None, "no histogram"),
            ("+Inf", "2", None, "+Inf"),
            ("up 1", "rpc_bucket{le=\"1\"} 1", None, "several histograms"),
        ] {
            let error = read(&TWO_ROUTES.replace(from, to), None).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.line(), line, "{to}: {text}");
            assert!(text.contains(part), "{to}: {text}");
        }
        let few = TWO_ROUTES.replace("000", "").replace("900", "1");
        let error = read(&few, None).unwrap_err().to_string();
        assert!(error.contains("too few"), "{error}");
        let error = read(TWO_ROUTES, Some("htp_seconds")).unwrap_err();
        assert!(
            error.to_string().contains("there are http_seconds"),
            "{error}"
        );
        let error = read(TWO_ROUTES, Some("http_seconds{route=\"/c\"}")).unwrap_err();
        assert!(
            error.to_string().contains("route is \"/a\", \"/b"),
            "{error}"
        );
        for metric in ["", "a{", "a{b=c}", "a b"] {
            assert!(read(TWO_ROUTES, Some(metric)).is_err(), "{metric}");
        }
    }

    #[test]
    fn metrics_named_bucket_that_are_no_histogram_are_ignored() {
        let text = format!("{TWO_ROUTES}s3_bucket{{name=\"x\"}} 1\nleaky_bucket 5\n");
        assert!(read(&text, None).is_ok());
    }

    #[test]
    fn quantiles_beyond_the_last_histogram_bound_are_not_invented() {
        let text = counts(
            "a_seconds",
            "",
            &[("0.1", 5000), ("0.5", 9500), ("+Inf", 10000)],
        );
        let latency = read(&text, None).unwrap();
        let given: Vec<_> = latency.given().map(|(name, _)| name).collect();
        assert_eq!(given, ["p50", "p75", "p90", "p95"]);
        assert!(latency.quantile(0.999) > 0.5e9);
        // One in fifty takes longer than a second, so the p99 is not 0.2 s.
        let text = counts(
            "a_seconds",
            "",
            &[("0.1", 9600), ("1", 9800), ("+Inf", 10000)],
        );
        let latency = read(&text, None).unwrap();
        assert!((latency.quantile(0.99) / 1e9 - 1.0).abs() < 1e-9);
        assert!(latency.quantile(0.999) > 1.5e9);
        let source = &latency.source;
        assert!(source.contains("p99 is above"), "{source}");
        let text = counts(
            "a_seconds",
            "",
            &[("0.1", 5000), ("0.5", 8000), ("+Inf", 10000)],
        );
        let error = read(&text, None).unwrap_err().to_string();
        assert!(
            error.contains("20 % of the observations are above"),
            "{error}"
        );
    }

    /// Half a million buckets: a search through all of them for each line would take minutes.
    #[test]
    fn a_file_with_very_many_buckets_is_read_quickly() {
        let mut text: String = (1..500_000)
            .map(|le| format!("a_seconds_bucket{{le=\"{le}\"}} {le}\n"))
            .collect();
        text += "a_seconds_bucket{le=\"+Inf\"} 500000\n";
        let latency = read(&text, None);
        let error = latency.unwrap_err().to_string();
        assert!(error.contains("24h"), "{error}");
    }

    proptest! {
        #[test]
        fn the_histogram_reader_never_panics(text in "(a_bucket|a|\\{|\\}|le=|\"|\\\\|,| |\n|[0-9]|\\+Inf|é){0,60}") {
            let _ = read(&text, None);
            let _ = read(&text, Some(&text));
        }
    }
}
