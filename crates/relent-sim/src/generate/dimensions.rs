//! The dimensions of random scenarios, with their ranges.

use std::fmt::Write;

/// A property in which scenarios differ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dimension {
    /// Its name.
    pub name: &'static str,
    /// Its meaning, with the unit of its ranges.
    pub meaning: &'static str,
    /// Its possible levels.
    pub levels: &'static [Level],
    /// Its possible levels for [`Generator::Everyday`], if they differ.
    pub everyday: Option<&'static [Level]>,
}

/// The distribution of the random scenarios.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Generator {
    /// All kinds of services, clients and faults, and large client populations above all.
    #[default]
    Broad,
    /// Everyday conditions: any distance, short queues, high loads and expensive rejections together; few and
    /// low-traffic callers, at the start and later; fast failures and random failures.
    Everyday,
}

impl Generator {
    /// All generators.
    pub const ALL: [Self; 2] = [Self::Broad, Self::Everyday];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broad => "broad",
            Self::Everyday => "everyday",
        }
    }
}

impl Dimension {
    /// The possible levels for this generator.
    #[must_use]
    pub fn levels_of(&self, generator: Generator) -> &'static [Level] {
        match generator {
            Generator::Broad => self.levels,
            Generator::Everyday => self.everyday.unwrap_or(self.levels),
        }
    }
}

/// A level of a dimension.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Level {
    /// Its name.
    pub name: &'static str,
    /// Its frequency, relative to the other levels.
    pub weight: u32,
    /// The least and the greatest value; equal if there is nothing to draw.
    pub range: (f64, f64),
}

/// A level with a range.
const fn range(name: &'static str, weight: u32, least: f64, most: f64) -> Level {
    Level {
        name,
        weight,
        range: (least, most),
    }
}

/// A level with nothing to draw.
const fn plain(name: &'static str, weight: u32) -> Level {
    range(name, weight, 0.0, 0.0)
}

macro_rules! dimensions {
    ($($constant:ident, $name:literal, $meaning:literal,
        [$($level:expr),* $(,)?] $(, everyday [$($everyday:expr),* $(,)?])?;)*) => {
        $(pub(super) static $constant: Dimension = Dimension {
            name: $name,
            meaning: $meaning,
            levels: &[$($level),*],
            everyday: dimensions!(@levels $($($everyday),*)?),
        };)*

        /// All dimensions. The first level of each is the plain one.
        pub static DIMENSIONS: &[&Dimension] = &[$(&$constant),*];
    };
    (@levels) => { None };
    (@levels $($level:expr),+) => { Some(&[$($level),+]) };
}

dimensions! {
    PROCESSES, "processes", "client processes", [
        range("few", 3, 2.0, 30.0), range("one", 1, 1.0, 1.0), range("many", 3, 30.0, 1000.0),
        range("thousands", 2, 1000.0, 20_000.0), range("very many", 1, 20_000.0, 100_000.0),
    ], everyday [
        range("one", 3, 1.0, 1.0), range("few", 3, 2.0, 20.0), range("many", 2, 20.0, 2000.0),
    ];
    RATE, "rate", "requests per second, without bursts and spikes", [
        range("medium", 3, 20.0, 70.0), range("low", 2, 4.0, 20.0), range("high", 3, 70.0, 200.0),
    ], everyday [
        range("medium", 3, 4.0, 50.0), range("low", 3, 0.2, 4.0), range("high", 2, 50.0, 200.0),
    ];
    LOAD, "load", "requests over capacity; everyday: low where the rate is low", [
        range("medium", 3, 0.5, 0.8), range("low", 2, 0.1, 0.5), range("high", 3, 0.8, 0.95),
        range("too high", 1, 1.0, 1.3),
    ], everyday [
        range("low", 1, 0.001, 0.05), range("medium", 3, 0.3, 0.8), range("high", 4, 0.8, 0.95),
        range("too high", 2, 0.95, 1.1),
    ];
    SHAPE, "load shape", "how the load changes; k: the highest rate over the capacity", [
        plain("steady", 10), range("spike", 2, 1.5, 5.0), range("bursts", 2, 1.2, 5.0),
        range("step", 1, 1.05, 2.0), range("ramp", 1, 0.8, 1.2), range("wave", 1, 0.8, 1.3),
        plain("closed", 2),
    ], everyday [
        plain("steady", 10), range("spike", 1, 1.5, 3.0), range("bursts", 1, 1.2, 3.0), range("wave", 1, 0.8, 1.2),
        plain("closed", 1),
    ];
    FAULT, "fault", "the kind of outage; the share of capacity left, or a probability", [
        plain("none", 3), plain("blackout", 4), plain("stall", 4), range("brownout", 3, 0.05, 0.8),
        range("failures", 2, 0.2, 1.0), range("loss", 2, 0.1, 1.0), plain("restart", 1),
    ], everyday [
        plain("none", 4), plain("blackout", 3), plain("stall", 2), range("brownout", 3, 0.3, 0.9),
        range("failures", 1, 0.2, 1.0), range("loss", 1, 0.05, 0.3), plain("restart", 1),
    ];
    BEGIN, "fault start", "when the fault starts", [plain("after a warm-up", 3), plain("at the start", 2)],
        everyday [plain("after a warm-up", 1), plain("at the start", 1)];
    LENGTH, "fault duration", "in seconds, at most a quarter of the time", [
        range("medium", 3, 2.0, 10.0), range("short", 1, 0.3, 2.0), range("long", 3, 10.0, 60.0),
    ];
    PATTERN, "fault pattern", "its repetition; the period in seconds, half of which is bad", [
        plain("once", 5), range("windows", 2, 4.0, 40.0), range("flapping", 2, 0.5, 4.0),
    ];
    PART, "affected part", "the part of the service that the fault affects", [
        plain("all", 4), plain("one node", 3), plain("node by node", 1), plain("one class", 2),
    ], everyday [plain("all", 4), plain("one node", 1), plain("node by node", 1)];
    NODES, "nodes", "nodes of the service", [
        range("one", 3, 1.0, 1.0), range("some", 2, 2.0, 5.0), range("many", 1, 5.0, 20.0),
    ], everyday [range("one", 4, 1.0, 1.0), range("some", 1, 2.0, 5.0)];
    BALANCER, "balancer", "which node gets an attempt", [
        plain("round-robin", 2), plain("random", 1), plain("least-outstanding", 1),
    ];
    STICKY, "sticky", "does a process keep its node?", [plain("no", 3), plain("yes", 1)];
    DESTINATION, "destination", "the scope of a budget and a circuit breaker", [plain("service", 3), plain("node", 1)];
    WORKERS, "workers", "of a node; a service takes up to a second on average", [
        range("one", 3, 1.0, 1.0), range("some", 2, 2.0, 10.0), range("many", 2, 10.0, 100.0),
    ];
    TIME, "service time", "its distribution; the sigma of a lognormal", [
        plain("exponential", 3), plain("constant", 1), range("lognormal", 2, 0.5, 2.0),
    ];
    QUEUE, "queue", "the length at which it rejects; milliseconds of work, or attempts", [
        plain("unbounded", 3), range("long", 2, 200.0, 5000.0), range("medium", 2, 20.0, 200.0),
        range("short", 2, 2.0, 20.0), range("attempts", 1, 1.0, 100.0),
    ], everyday [
        plain("unbounded", 1), range("long", 3, 100.0, 500.0), range("medium", 3, 20.0, 100.0),
        range("short", 3, 2.0, 20.0),
    ];
    REJECT_COST, "rejection", "the cost of one, in services", [
        plain("free", 2), range("cheap", 2, 0.01, 0.1), range("expensive", 1, 0.1, 0.5),
    ], everyday [plain("free", 1), range("cheap", 2, 0.01, 0.1), range("expensive", 2, 0.1, 0.5)];
    CANCELLATION, "cancellation", "is queued work dropped after its caller has gone?", [plain("no", 2), plain("yes", 1)];
    FAILURES, "failures", "the probability of an error, independent of load", [
        plain("none", 5), range("few", 3, 0.001, 0.03), range("many", 2, 0.03, 0.3), range("most", 2, 0.3, 0.8),
    ], everyday [plain("none", 6), range("few", 2, 0.001, 0.03), range("many", 1, 0.03, 0.2)];
    FAST, "fast failures", "the probability of a fast failure, independent of load", [
        plain("none", 1),
    ], everyday [plain("none", 2), range("few", 2, 0.01, 0.1), range("many", 2, 0.1, 0.5)];
    FAST_AS, "failures as", "the form in which callers see errors and rejections", [
        plain("503", 1),
    ], everyday [plain("503", 2), plain("429", 1), plain("reset", 2), plain("refused", 1)];
    LOSS, "network loss", "the probability that a message is lost", [
        plain("none", 6), range("low", 2, 0.001, 0.03), range("high", 1, 0.03, 0.2),
    ], everyday [plain("none", 8), range("low", 1, 0.001, 0.03)];
    WAY, "one-way delay", "of a message, in milliseconds", [
        range("short", 3, 0.1, 2.0), range("medium", 2, 2.0, 20.0), range("long", 1, 20.0, 100.0),
    ], everyday [range("short", 2, 0.01, 1.0), range("medium", 3, 1.0, 20.0), range("long", 3, 20.0, 150.0)];
    TIMEOUT, "attempt timeout", "in seconds, no less than three mean services; tight: so many of those and two delays", [
        range("medium", 4, 0.3, 2.0), range("long", 2, 2.0, 10.0), range("tight", 2, 2.0, 6.0),
    ];
    DEADLINE, "deadline", "in seconds, no less than the attempt timeout", [
        range("medium", 3, 5.0, 30.0), range("short", 2, 1.0, 5.0), range("long", 2, 30.0, 120.0),
    ];
    RETRY_AFTER, "Retry-After", "of rejections, the same for all callers, in seconds", [
        plain("none", 4), range("sent", 1, 1.0, 10.0),
    ], everyday [plain("none", 8), range("sent", 1, 1.0, 10.0)];
    LIMITER, "limiter", "a rate limit, and the Retry-After of its rejections; its rate over that of the requests", [
        plain("none", 10), range("without Retry-After", 1, 0.5, 1.5), range("one Retry-After for all", 1, 0.5, 1.5),
        range("reserved slots", 1, 0.5, 1.5),
    ], everyday [plain("none", 1)];
    SHEDDER, "shedder", "is load shed by queue delay?", [plain("no", 6), plain("yes", 1)];
    CLASSES, "classes", "kinds of requests; the cost of the second", [
        plain("one", 4), range("two", 1, 3.0, 30.0),
    ], everyday [plain("one", 1)];
    CHAIN, "layers", "that retry, one above the other", [plain("1", 8), plain("2", 2), plain("3", 1)],
        everyday [plain("1", 1)];
    RESTARTS, "client restarts", "of all processes, in the fault or at a quarter of the time", [
        plain("none", 5), plain("simultaneous", 1), plain("rolling", 1),
    ];
    CHAIN_PROPAGATES, "layers propagate", "between layers: cancellation; headers: deadlines and no-retry markers, too", [
        plain("nothing", 1), plain("cancellation", 2), plain("headers", 1),
    ], everyday [plain("nothing", 1)];
}

/// All dimensions as a table in Markdown.
#[must_use]
pub fn table() -> String {
    let mut text =
        "| dimension | meaning | broad: levels, with their ranges and weights | everyday |\n|---|---|---|---|\n"
            .to_owned();
    let written = |levels: &[Level]| {
        let levels = levels.iter().map(|level| {
            let (least, most) = level.range;
            let range = match most > 0.0 {
                true if least < most => format!(" {least}–{most}"),
                true => format!(" {least}"),
                false => String::new(),
            };
            format!("{}{range} ({})", level.name, level.weight)
        });
        let levels: Vec<String> = levels.collect();
        levels.join(", ")
    };
    for dimension in DIMENSIONS {
        let Dimension {
            name,
            meaning,
            levels,
            everyday,
        } = dimension;
        let everyday = everyday.map_or_else(|| "the same".to_owned(), written);
        let _ = writeln!(
            text,
            "| {name} | {meaning} | {} | {everyday} |",
            written(levels)
        );
    }
    text
}
