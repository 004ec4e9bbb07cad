#![allow(clippy::unwrap_used, reason = "tests may")]

use std::time::Instant as Wall;

use ::redis::AsyncCommands;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use relent_core::admission::{AdmissionController, KeyedLimiter, Limiter};

use super::*;
use crate::servers;

/// The same limits in Redis and in the core, with a clock that the test sets.
struct Pair {
    limits: Arc<Limits>,
    core: Vec<KeyedLimiter>,
    connection: MultiplexedConnection,
}

/// The test's clock is ahead of Redis's, so Redis expires nothing on its own.
const CENTURY: u64 = 3_200_000_000_000_000_000;

impl Pair {
    async fn new(client: &Client, namespace: &str, configs: &[LimiterConfig]) -> Self {
        let mut fleet = RedisLimits::closed(client.clone())
            .namespace(namespace)
            .max_wait(Duration::from_secs(30));
        fleet.script = script("local now = tonumber(redis.call('GET', 'clock'))\n");
        let quotas: Vec<Quota> = configs
            .iter()
            .enumerate()
            .map(|(number, config)| Quota::new(&number.to_string(), *config).unwrap())
            .collect();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let limiter = |config| KeyedLimiter::new(Limiter::new(config).unwrap(), 1000);
        Self {
            limits: Arc::new(Limits::new(Arc::new(fleet), &quotas)),
            core: configs.iter().map(limiter).collect(),
            connection,
        }
    }

    /// Returns the decisions of both on a request with these keys, one for each quota.
    async fn decision(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        keys: &[Option<u64>],
    ) -> [Decision; 2] {
        let micros = now.as_nanos() / 1000;
        let _: () = self.connection.set("clock", micros).await.unwrap();
        let numbered = keys.iter().enumerate();
        let applied: Vec<AppliedQuota> = numbered
            .filter_map(|(quota, key)| {
                Some(AppliedQuota {
                    quota,
                    key: Some((*key)?),
                })
            })
            .collect();
        let lua = self.limits.ask(arrival, &applied).await.unwrap().unwrap();
        let mut limiters: Vec<&mut Limiter> = self
            .core
            .iter_mut()
            .zip(keys)
            .filter_map(|(keyed, key)| Some(keyed.limiter(now, (*key)?)))
            .collect();
        let verdict = AdmissionController::new().admit_with(now, arrival, &mut limiters);
        let left = limiters.iter_mut().zip(&applied).map(|(limiter, one)| {
            RemainingQuota::of(limiter, one.quota, now, arrival.cost, &verdict)
        });
        let core = Decision {
            left: left.collect(),
            verdict: verdict
                .map_err(|rejected| RateLimitRejection::Limits(by_quota(rejected, &applied))),
            taken: QuotaSource::Redis,
        };
        // One in three admitted requests is not served.
        if core.verdict.is_ok() && (now.as_nanos() / 1000).is_multiple_of(3) {
            for limiter in &mut limiters {
                limiter.give_back(now, arrival.cost);
            }
            self.limits.give_back(arrival.cost, &applied).await;
        }
        [lua, core]
    }
}

#[test]
fn quota_taken_without_redis_is_given_back_as_it_was_taken() {
    let client = Client::open("redis://127.0.0.1/").unwrap();
    let quota = |name, burst| {
        let config = LimiterConfig {
            burst,
            ..LimiterConfig::new(burst, Duration::from_secs(3600))
        };
        Quota::new(name, config).unwrap()
    };
    let quotas = [quota("few", 8), quota("many", 400)];
    let limits = Limits::new(Arc::new(RedisLimits::local(client, 4)), &quotas);
    let [few, many] = [0, 1].map(|quota| AppliedQuota { quota, key: None });
    let left_of_many = |cost, applied: &[AppliedQuota]| {
        let arrival = Arrival {
            cost,
            ..Arrival::FIRST
        };
        let decision = limits.decide_locally(Instant::ORIGIN, arrival, applied);
        decision.left.last().unwrap().available
    };
    assert_eq!(left_of_many(50, &[many]), 50);
    assert_eq!(left_of_many(8, &[few, many]), 48, "all of the share of few");
    limits.give_back_locally(Instant::ORIGIN, 8, &[few, many]);
    assert_eq!(left_of_many(1, &[many]), 49);
}

fn config() -> impl Strategy<Value = LimiterConfig> {
    (1..40_u64, 1..5_u32, 0..2000_u64, 1..300_u64).prop_map(|(interval, burst, horizon, grace)| {
        LimiterConfig {
            burst,
            horizon: Duration::from_micros(horizon * 1000 + 1),
            grace: Duration::from_micros(grace * 1000 + 3),
            ..LimiterConfig::new(1, Duration::from_micros(interval * 1000 + 7))
        }
    })
}

/// Whether to repeat the latest rejected request at its time; else the pause before a request in microseconds. Then
/// caller, cost, and the key for each quota.
type Step = (bool, u64, Option<u64>, u32, [Option<u64>; 3]);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![6 => Just(0), 3 => 0..60_000_u64, 1 => 0..2_000_000_u64];
    let caller = prop::option::weighted(0.8, 0..6_u64);
    let key = || prop::option::weighted(0.9, 0..3_u64);
    let obeys = prop::bool::weighted(0.3);
    prop::collection::vec(
        (obeys, pause, caller, 0..6_u32, [key(), key(), key()]),
        1..200,
    )
}

#[tokio::test]
async fn the_rate_limit_script_decides_like_the_core() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let cases = (prop::collection::vec(config(), 1..=3), steps());
    let (mut tickets, mut refused, mut decisions) = (0, 0, 0);
    for case in 0..60 {
        let (configs, steps) = cases.new_tree(&mut runner).unwrap().current();
        let mut pair = Pair::new(&client, &case.to_string(), &configs).await;
        let mut now = Instant::from_nanos(CENTURY);
        let mut told = None;
        for (obeys, pause, caller, cost, keys) in steps {
            let arrival = Arrival {
                caller,
                cost,
                ..Arrival::FIRST
            };
            let pause = (Duration::from_micros(pause), arrival, keys);
            let (pause, arrival, keys) = told.take().filter(|_| obeys).unwrap_or(pause);
            now = now.saturating_add(pause);
            let own = &keys[..configs.len()];
            if own.iter().all(Option::is_none) {
                continue;
            }
            let [lua, core] = pair.decision(now, &arrival, own).await;
            assert_eq!(lua, core, "case {case} at {now:?}: {arrival:?} {configs:?}");
            decisions += 1;
            tickets += u32::from(
                core.verdict
                    == Ok(Admitted {
                        reserved_slot: true,
                    }),
            );
            refused += u32::from(core.verdict.is_err());
            if let Err(RateLimitRejection::Limits(Rejected::Limited { refusal, .. })) = core.verdict
            {
                told = Some((refusal.delay(), arrival, keys));
            }
        }
    }
    // The cases cover enough of each outcome.
    assert!(
        tickets > 100 && refused > 1000 && decisions > 4000,
        "{tickets} {refused} {decisions}"
    );
}

#[tokio::test]
async fn redis_expires_a_limiter_that_is_full_again() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let config = LimiterConfig {
        grace: Duration::from_millis(50),
        ..LimiterConfig::new(50, Duration::from_secs(1))
    };
    let quotas = [Quota::new("a", config).unwrap()];
    let fleet = Arc::new(RedisLimits::closed(client.clone()).max_wait(Duration::from_secs(30)));
    let limits = Limits::new(fleet, &quotas);
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for key in 0..100 {
        for caller in [None, Some(1), Some(2), None] {
            let arrival = Arrival {
                caller,
                ..Arrival::FIRST
            };
            let applied = [AppliedQuota {
                quota: 0,
                key: Some(key),
            }];
            limits.ask(&arrival, &applied).await.unwrap();
        }
    }
    let began = Wall::now();
    loop {
        let mut keys: Vec<String> = connection.keys("*").await.unwrap();
        keys.retain(|key| !key.is_empty());
        if keys.is_empty() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{keys:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_partly_evicted_limiter_still_limits() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let config = LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(1, Duration::from_secs(60))
    };
    let quotas = [Quota::new("a", config).unwrap()];
    let fleet = Arc::new(RedisLimits::closed(client.clone()).max_wait(Duration::from_secs(30)));
    let limits = Limits::new(fleet, &quotas);
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    for (number, kind, is_admitted) in [
        (0_u64, ":r", false),
        (1, ":o", false),
        (2, ":t", false),
        (3, "", true),
    ] {
        let key = Some(number);
        let ask = async |caller| {
            let arrival = Arrival {
                caller,
                ..Arrival::FIRST
            };
            let decision = limits
                .ask(&arrival, &[AppliedQuota { quota: 0, key }])
                .await;
            decision.map(|decision| decision.unwrap().verdict.is_ok())
        };
        for caller in [None, None, Some(1), Some(2)] {
            ask(caller).await.unwrap();
        }
        let name = format!("{{relent}}:a:{number:016x}{kind}");
        let removed: u32 = connection.del(&name).await.unwrap();
        assert_eq!(removed, 1, "{name}");
        assert_eq!(ask(None).await.unwrap(), is_admitted, "{name}");
        for caller in [None, Some(1), Some(3)] {
            assert!(!ask(caller).await.unwrap(), "{name}");
        }
    }
}

#[test]
fn redis_limits_use_whole_microseconds_and_bounded_slots() {
    let micros = |rate, burst| {
        let config = LimiterConfig {
            burst,
            ..LimiterConfig::new(rate, Duration::from_secs(1))
        };
        Micros::of(&Quota::new("a", config).unwrap())
    };
    assert_eq!(micros(100, 1).interval, 10_000);
    assert_eq!(
        micros(3, 1).interval,
        333_334,
        "never faster than asked for"
    );
    assert_eq!(micros(100, 1).horizon, 300_000_000);
    assert_eq!(micros(10_000, 1).horizon, 100_000 * 100 - 3_000_000);
    let slowest = LimiterConfig {
        burst: 2,
        ..LimiterConfig::new(1, Duration::from_secs(1 << 33))
    };
    assert_eq!(
        Micros::of(&Quota::new("a", slowest).unwrap()).interval,
        MAX_MICROS / 2
    );
    let longest = LimiterConfig {
        horizon: Duration::MAX,
        ..LimiterConfig::new(1, Duration::from_secs(1 << 24))
    };
    let longest = Micros::of(&Quota::new("a", longest).unwrap());
    assert_eq!(longest.horizon, MAX_MICROS, "a number of Lua holds no more");
}

#[test]
fn a_local_share_divides_rate_and_burst() {
    let config = LimiterConfig {
        burst: 10,
        ..LimiterConfig::new(100, Duration::from_secs(1))
    };
    let quota = Quota::new("a", config).unwrap();
    let share = Fallback::Local(4).share(&quota).config;
    assert_eq!((share.per, share.burst), (Duration::from_secs(4), 3));
    assert_eq!(Fallback::Open.share(&quota).config, config);
}

/// A missing number must not be read as 0, which would admit every request.
#[test]
fn a_malformed_reply_is_not_a_decision() {
    let applied = [7, 9].map(|quota| AppliedQuota { quota, key: None });
    let good = [3, 1, 5_000_000, 0, 5_000_000, 4, 0];
    let judged = decision(&good, &applied).unwrap();
    let refusal = Refusal::Shared(Duration::from_secs(5));
    let limited = Rejected::Limited {
        refusal,
        limiter: 9,
    };
    assert_eq!(judged.verdict, Err(RateLimitRejection::Limits(limited)));
    for less in 0..good.len() {
        assert_eq!(decision(&good[..less], &applied), None, "{less} numbers");
    }
    assert_eq!(
        decision(&[0, 0, 0, 1, 0, 1, 0, 0], &applied),
        None,
        "one more"
    );
    assert_eq!(
        decision(&[5, 0, 0, 1, 0, 1, 0], &applied),
        None,
        "no such verdict"
    );
    assert_eq!(
        decision(&[3, 2, 0, 1, 0, 1, 0], &applied),
        None,
        "no such limiter"
    );
}

/// Redis was stopped, so the process decided without it.
#[tokio::test]
async fn a_late_redis_call_takes_no_quota() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let config = LimiterConfig {
        burst: 1,
        ..LimiterConfig::new(1, Duration::from_secs(3600))
    };
    let quota = Quota::new("a", config).unwrap();
    let fleet = RedisLimits::closed(client).max_wait(Duration::from_secs(30));
    let limits = Limits::new(Arc::new(fleet), &[quota]);
    let applied = [AppliedQuota {
        quota: 0,
        key: None,
    }];
    for caller in [None, Some(1), Some(2)] {
        let reply = limits.call(caller, 1, &applied, 1_000_000).await.unwrap();
        assert_eq!(reply.first(), Some(&LATE), "{reply:?}");
    }
    let arrival = Arrival::FIRST;
    for is_admitted in [true, false] {
        let judged = limits.ask(&arrival, &applied).await.unwrap().unwrap();
        assert_eq!(judged.verdict.is_ok(), is_admitted);
    }
}

#[tokio::test]
async fn a_request_may_wait_for_redis_without_limit() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let quota = Quota::new("a", LimiterConfig::new(1, Duration::from_secs(1))).unwrap();
    let fleet = RedisLimits::closed(client).max_wait(Duration::MAX);
    let limits = Limits::new(Arc::new(fleet), &[quota]);
    let applied = [AppliedQuota {
        quota: 0,
        key: None,
    }];
    let decided = limits.ask(&Arrival::FIRST, &applied).await.unwrap();
    assert!(decided.unwrap().verdict.is_ok());
}

/// Otherwise limits in a Redis whose connections take longer than a request waits would never apply.
#[tokio::test]
async fn a_connection_to_redis_is_completed_without_the_request_that_began_it() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("proxy");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let client = Client::open(format!("redis+unix://{}", path.display())).unwrap();
    // The setup has the same limit.
    let fleet = RedisLimits::closed(client).max_wait(Duration::from_secs(60));
    let limits = Limits::new(Arc::new(fleet), &[]);
    let request = limits.call(None, 1, &[], i64::MAX);
    let (mut from_client, _) = tokio::select! {
        accepted = listener.accept() => accepted.unwrap(),
        _ = request => panic!("the proxy does not respond yet"),
    };
    // The request has ended. Only now Redis responds.
    let mut to_server = tokio::net::UnixStream::connect(server.socket())
        .await
        .unwrap();
    tokio::spawn(
        async move { tokio::io::copy_bidirectional(&mut from_client, &mut to_server).await },
    );
    let second = tokio::select! {
        _ = listener.accept() => panic!("it is not completed"),
        reply = limits.call(None, 1, &[], i64::MAX) => reply,
    };
    assert_eq!(second.unwrap().first(), Some(&0));
    // The failure of a request that waited for the setup leaves the new connection.
    let late = (StoreFailureKind::TimedOut, None);
    limits.fleet.failed(Instant::ORIGIN, late);
    let third = tokio::select! {
        _ = listener.accept() => panic!("it is set up again"),
        reply = limits.call(None, 1, &[], i64::MAX) => reply,
    };
    assert_eq!(third.unwrap().first(), Some(&0));
}
