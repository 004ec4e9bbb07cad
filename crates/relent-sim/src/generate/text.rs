//! Draws a scenario and writes its file.

use std::fmt::Write;

use super::dimensions as all;
use super::dimensions::Generator;
use super::draw::{Drawn, FixedRandom};

/// The expected number of requests, and the duration in which they are made.
const REQUESTS: f64 = 12_000.0;
const MIN_SECONDS: f64 = 60.0;
const MAX_SECONDS: f64 = 240.0;
/// The longest duration if callers may be few.
const MAX_SECONDS_OF_FEW_CALLERS: f64 = 600.0;

/// Values that several sections need.
struct LoadFrame {
    /// Requests per second.
    rate: f64,
    /// Services per second, of the mean cost.
    capacity: f64,
    /// The duration in which requests are made, in seconds.
    lasts: f64,
    nodes: u16,
    two_classes: bool,
}

pub(super) fn write(draw: &mut FixedRandom) -> String {
    let rate = draw.of(&all::RATE);
    // A service with so few requests has other callers, which are not part of its load here.
    let load = match draw.generator {
        Generator::Everyday if rate.is("low") => {
            let light = &all::LOAD.levels_of(draw.generator)[0];
            draw.within(&all::LOAD, light).value
        }
        _ => draw.of(&all::LOAD).value,
    };
    let rate = round(rate.value);
    let limiter = draw.of(&all::LIMITER);
    let nodes = match limiter.is("none") {
        true => draw.of(&all::NODES),
        false => draw.first(&all::NODES),
    };
    let classes = draw.of(&all::CLASSES);
    let most = match draw.generator {
        Generator::Broad => MAX_SECONDS,
        Generator::Everyday => MAX_SECONDS_OF_FEW_CALLERS,
    };
    let frame = LoadFrame {
        rate,
        capacity: round(rate / load),
        lasts: (REQUESTS / rate).clamp(MIN_SECONDS, most).floor(),
        nodes: nodes.value.round() as u16,
        two_classes: classes.is("two"),
    };
    let outage_section = outages(draw, &frame);
    let arrivals = arrivals(draw, &frame);
    let clients = clients(draw, &frame, classes, &outage_section);
    let service = service(draw, &frame, classes, limiter);
    let way = draw.of(&all::WAY).value;
    let loss = draw.of(&all::LOSS).value;
    let mut text = format!("[clients]\n{arrivals}{}", clients.main);
    let timeout = timeout(draw, &service, way);
    let deadline = draw.of(&all::DEADLINE).value.max(timeout);
    let _ = writeln!(text, "attempt_timeout = {}", seconds(timeout));
    let _ = writeln!(text, "deadline = {}", seconds(deadline));
    let _ = writeln!(text, "\n[network]\none_way = {}", seconds(way / 1000.0));
    if loss > 0.0 {
        let _ = writeln!(text, "loss = {}", round(loss));
    }
    let _ = write!(text, "\n[service]\n{}", service.text);
    // Drawn last, since this dimension was added last: otherwise every number would give a different scenario.
    if clients.layers > 1 {
        let _ = writeln!(text, "\n[chain]\nlayers = {}", clients.layers);
        text += match draw.of(&all::CHAIN_PROPAGATES).level {
            "cancellation" => "hears = \"cancellation\"\n",
            "headers" => "hears = \"deadline\"\nmark = true\n",
            _ => "",
        };
    } else {
        draw.first(&all::CHAIN_PROPAGATES);
    }
    if let Some((share, cost)) = clients.classes {
        let slow = (3.0 * cost * service.mean).max(timeout);
        let _ = write!(
            text,
            "\n[[clients.classes]]\nname = \"read\"\nshare = {}\n\
             \n[[clients.classes]]\nname = \"report\"\nshare = {share}\ncost = {cost}\n\
             attempt_timeout = {}\ndeadline = {}\n",
            round(1.0 - share),
            seconds(slow),
            seconds(deadline.max(slow)),
        );
    }
    text + &clients.restarts + &outage_section.text
}

/// Draws the times of the requests.
fn arrivals(draw: &mut FixedRandom, frame: &LoadFrame) -> String {
    let LoadFrame { rate, lasts, .. } = *frame;
    // The highest rate is a multiple of the capacity: at a very low load this would be no spike.
    let shape = match draw.generator {
        Generator::Everyday if frame.rate < 0.1 * frame.capacity => draw.first(&all::SHAPE),
        _ => draw.of(&all::SHAPE),
    };
    let peak = round(shape.value * frame.capacity).max(round(rate * 1.05));
    let start = lasts / 4.0;
    let point = |at: f64, rate: f64| format!("{{ at = {}, rate = {rate} }}", seconds(at));
    let curve = |points: &[(f64, f64)]| {
        let points: Vec<String> = points.iter().map(|(at, rate)| point(*at, *rate)).collect();
        format!(
            "arrivals.curve = {{ points = [{}], for = \"{lasts}s\" }}\n",
            points.join(", ")
        )
    };
    match shape.level {
        "spike" => {
            let over = start + draw.between(1.0, 10.0).round();
            curve(&[
                (0.0, rate),
                (start, rate),
                (start, peak),
                (over, peak),
                (over, rate),
            ])
        }
        "step" => {
            let over = lasts / 2.0;
            curve(&[
                (0.0, rate),
                (start, rate),
                (start, peak),
                (over, peak),
                (over, rate),
            ])
        }
        "ramp" => curve(&[
            (0.0, round(rate * 0.3)),
            (lasts / 2.0, peak),
            (lasts * 0.6, rate),
        ]),
        "bursts" => {
            let period = round(draw.between(2.0, 20.0));
            let on = period * rate / peak;
            format!(
                "arrivals.bursts = {{ rate = {peak}, on = {}, off = {}, for = \"{lasts}s\" }}\n",
                seconds(on),
                seconds(period - on),
            )
        }
        "wave" => {
            let swing = round((peak / rate - 1.0).min(0.9));
            let period = seconds(lasts / 3.0);
            format!(
                "arrivals.wave = {{ rate = {rate}, swing = {swing}, period = {period}, for = \"{lasts}s\" }}\n"
            )
        }
        "closed" => {
            let think = round(draw.between(0.5, 10.0));
            let clients = (rate * think).ceil();
            format!(
                "arrivals.closed = {{ clients = {clients}, think = {}, for = \"{lasts}s\" }}\n",
                seconds(think),
            )
        }
        _ => format!("arrivals.poisson = {{ rate = {rate}, for = \"{lasts}s\" }}\n"),
    }
}

struct ClientSection {
    main: String,
    restarts: String,
    layers: u8,
    /// The share and the cost of the second class.
    classes: Option<(f64, f64)>,
}

fn clients(
    draw: &mut FixedRandom,
    frame: &LoadFrame,
    classes: Drawn,
    outage_section: &OutageSection,
) -> ClientSection {
    let chain = draw.of(&all::CHAIN);
    let layers = chain.level.parse().unwrap_or(1);
    let several = frame.nodes > 1;
    let destination = match several {
        true => draw.of(&all::DESTINATION),
        false => draw.first(&all::DESTINATION),
    };
    // Each process has a destination in each layer and for each node.
    let places = match destination.is("node") {
        true => f64::from(frame.nodes) * f64::from(layers),
        false => f64::from(layers),
    };
    let processes = draw.of(&all::PROCESSES).value.min(200_000.0 / places);
    let mut main = format!("processes = {}\n", processes.round().max(1.0));
    if destination.is("node") {
        main += "destination = \"node\"\n";
    }
    let restart = draw.of(&all::RESTARTS);
    let at = outage_section.middle.unwrap_or(frame.lasts / 4.0);
    let over = match restart.is("rolling") {
        true => frame.lasts / 8.0,
        false => 0.0,
    };
    let restarts = match restart.is("none") {
        true => String::new(),
        false => format!(
            "\n[[clients.restarts]]\nat = {}\nover = {}\n",
            seconds(at),
            seconds(over)
        ),
    };
    let classes = classes
        .is("two")
        .then(|| (round(draw.between(0.05, 0.3)), round(classes.value)));
    ClientSection {
        main,
        restarts,
        layers,
        classes,
    }
}

struct ServiceSection {
    text: String,
    /// The mean service time of a class of cost 1, in seconds.
    mean: f64,
}

fn service(
    draw: &mut FixedRandom,
    frame: &LoadFrame,
    classes: Drawn,
    limiter: Drawn,
) -> ServiceSection {
    let mut text = String::new();
    // With a second class, the capacity counts its services with their cost; 1/6 is about its share.
    let cost = match classes.is("two") {
        true => 1.0 + (classes.value - 1.0) / 6.0,
        false => 1.0,
    };
    let capacity = round(frame.capacity * cost);
    let each = capacity / f64::from(frame.nodes);
    let workers = draw.of(&all::WORKERS).value.min(each).round().max(1.0);
    let mean = workers / each;
    let _ = writeln!(text, "capacity = {capacity}");
    if workers > 1.0 {
        let _ = writeln!(text, "workers = {workers}");
    }
    if frame.nodes > 1 {
        let balancer = draw.of(&all::BALANCER).level;
        let sticky = draw.of(&all::STICKY).is("yes");
        let _ = writeln!(
            text,
            "nodes = {}\nbalancer = \"{balancer}\"\nsticky = {sticky}",
            frame.nodes
        );
    } else {
        draw.first(&all::BALANCER);
        draw.first(&all::STICKY);
    }
    let time = draw.of(&all::TIME);
    let _ = match time.level {
        "lognormal" => writeln!(text, "time = {{ lognormal = {} }}", round(time.value)),
        level => writeln!(text, "time = \"{level}\""),
    };
    let queue = draw.of(&all::QUEUE);
    let _ = match queue.level {
        "unbounded" => Ok(()),
        "attempts" => writeln!(text, "queue = {}", queue.value.round()),
        _ => writeln!(text, "queue = {}", seconds(queue.value / 1000.0)),
    };
    let reject_cost = draw.of(&all::REJECT_COST).value;
    let failures = draw.of(&all::FAILURES).value;
    let fast = draw.later(&all::FAST).value;
    let seen_as = draw.later(&all::FAST_AS).level;
    let shares = [
        ("reject_cost", reject_cost),
        ("failures", failures),
        ("fast_failures", fast),
    ];
    for (key, value) in shares {
        if value > 0.0 {
            let _ = writeln!(text, "{key} = {}", round(value));
        }
    }
    if draw.of(&all::CANCELLATION).is("yes") {
        text += "cancellation = true\n";
    }
    let is_response = match seen_as {
        "reset" | "refused" => {
            let _ = writeln!(text, "failures_as = \"{seen_as}\"");
            false
        }
        "429" => {
            text += "status = 429\n";
            true
        }
        _ => true,
    };
    let retry_after = match is_response {
        true => draw.of(&all::RETRY_AFTER).value,
        false => draw.first(&all::RETRY_AFTER).value,
    };
    if retry_after > 0.0 {
        let _ = writeln!(text, "retry_after = {}", seconds(retry_after));
    }
    let says = match limiter.level {
        "without Retry-After" => Some("\"none\"".to_owned()),
        "reserved slots" => Some("\"slots\"".to_owned()),
        "one Retry-After for all" => Some(seconds(draw.between(1.0, 10.0))),
        _ => None,
    };
    let shedder = draw.of(&all::SHEDDER);
    if let Some(says) = says {
        let rate = round(limiter.value * frame.rate);
        let burst = draw.between(1.0, rate.max(2.0)).round();
        let _ = write!(
            text,
            "\n[service.limiter]\nrate = {rate}\nburst = {burst}\nretry_after = {says}\n"
        );
    }
    if shedder.is("yes") {
        text += "\n[service.shedder]\n";
    }
    ServiceSection { text, mean }
}

/// The attempt timeout, in seconds.
fn timeout(draw: &mut FixedRandom, service: &ServiceSection, way: f64) -> f64 {
    let drawn = draw.of(&all::TIMEOUT);
    match drawn.is("tight") {
        true => drawn.value * (service.mean + 2.0 * way / 1000.0),
        false => drawn.value.max(3.0 * (service.mean + 2.0 * way / 1000.0)),
    }
}

struct OutageSection {
    text: String,
    /// The middle of the fault, in seconds.
    middle: Option<f64>,
}

fn outages(draw: &mut FixedRandom, frame: &LoadFrame) -> OutageSection {
    let outage_section = draw.of(&all::FAULT);
    if outage_section.is("none") {
        for dimension in [&all::BEGIN, &all::LENGTH, &all::PATTERN, &all::PART] {
            draw.first(dimension);
        }
        return OutageSection {
            text: String::new(),
            middle: None,
        };
    }
    let quarter = frame.lasts / 4.0;
    let at = match draw.of(&all::BEGIN).is("after a warm-up") {
        true => quarter,
        false => 0.0,
    };
    let length = draw.of(&all::LENGTH).value.min(quarter);
    let part = part(draw, frame, outage_section);
    let mut lines = String::new();
    let mut last = length;
    if part == "node by node" {
        // One node after the other, all within a quarter of the time.
        draw.first(&all::PATTERN);
        let every = quarter / f64::from(frame.nodes);
        last = length.min(every);
        let _ = writeln!(
            lines,
            "every = {}\ntimes = {}\nrolling = true",
            seconds(every),
            frame.nodes
        );
    } else {
        let pattern = draw.of(&all::PATTERN);
        if !pattern.is("once") {
            let period = pattern.value.min(quarter);
            let times = (quarter / period).floor();
            last = period / 2.0;
            if times > 1.0 {
                let _ = writeln!(lines, "every = {}\ntimes = {times}", seconds(period));
            }
        }
    }
    let value = round(outage_section.value.min(1.0));
    let effect = match outage_section.level {
        level @ ("brownout" | "failures" | "loss") => format!("{{ {level} = {value} }}"),
        level => format!("\"{level}\""),
    };
    match part {
        "one node" => lines += "nodes = [0]\n",
        "one class" => lines += "classes = [\"report\"]\n",
        _ => {}
    }
    OutageSection {
        text: format!(
            "\n[[outages]]\nat = {}\nfor = {}\neffect = {effect}\n{lines}",
            seconds(at),
            // Rounding must not make it longer than its period.
            seconds(last * 0.99),
        ),
        middle: Some(at + last / 2.0),
    }
}

/// Draws the part of the service that the fault affects.
fn part(draw: &mut FixedRandom, frame: &LoadFrame, outage_section: Drawn) -> &'static str {
    let of_classes =
        frame.two_classes && !outage_section.is("stall") && !outage_section.is("restart");
    let possible = |level: &str| match level {
        "one node" | "node by node" => frame.nodes > 1,
        "one class" => of_classes,
        _ => true,
    };
    let drawn = draw.of(&all::PART);
    if possible(drawn.level) {
        return drawn.level;
    }
    draw.levels.pop();
    draw.first(&all::PART).level
}

/// Rounds to three digits.
fn round(value: f64) -> f64 {
    let text = format!("{value:.2e}");
    text.parse().unwrap_or(value)
}

/// A time in the format of a scenario file.
fn seconds(value: f64) -> String {
    match value {
        0.0 => "\"0s\"".to_owned(),
        long if long >= 100.0 => format!("\"{long:.0}s\""),
        some if some >= 1.0 => format!("\"{some:.1}s\""),
        short if short >= 0.01 => format!("\"{:.0}ms\"", short * 1000.0),
        tiny => format!("\"{:.0}us\"", (tiny * 1e6).max(1.0)),
    }
}
