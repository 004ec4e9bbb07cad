use redis::AsyncCommands;

use super::*;
use crate::servers;
use crate::store::conformance;

#[tokio::test]
async fn the_redis_scripts_decide_like_the_core_at_any_time() {
    let Some(server) = servers::redis(&["--appendonly", "no"]) else {
        return;
    };
    let client = Client::open(server.url()).unwrap();
    let mut redis = Redis::connect_unchecked(client).await.unwrap();
    let clock = "local now = tonumber(redis.call('GET', 'clock'))\n";
    redis.scripts = Arc::new(Scripts::new(clock));
    // The test's clock is ahead of Redis's, so Redis expires nothing on its own.
    let century = relent_core::Instant::from_nanos(3_200_000_000_000_000_000);
    for seed in 0..18 {
        let (connection, _) = redis.connection.current().unwrap();
        let set = async |now: relent_core::Instant| {
            let micros = now.as_nanos() / 1000;
            let mut connection = connection.clone();
            let _: () = connection.set("clock", micros).await.unwrap();
        };
        let redis = redis.clone().namespace(&format!("seed {seed}"));
        // From seed 12 on the server's clock is also set forward and back.
        if seed < 12 {
            conformance::check_in_time(&redis, set, century, 1500, seed).await;
        } else {
            let step = conformance::step;
            conformance::check_at_times(&redis, set, century, step, 1500, seed).await;
        }
    }
}

#[test]
fn redis_info_reveals_eviction_and_missing_persistence() {
    let check = |text: &str| check(&InfoDict::new(text)).map_err(|error| error.to_string());
    assert_eq!(check(""), Ok(()));
    assert_eq!(
        check("maxmemory_policy:noeviction\r\naof_enabled:1\r\n"),
        Ok(())
    );
    let evicts = check("maxmemory_policy:allkeys-lru\r\n").unwrap_err();
    assert!(evicts.contains("allkeys-lru"), "{evicts}");
    let volatile = check("aof_enabled:0\r\n").unwrap_err();
    assert!(volatile.contains("appendonly"), "{volatile}");
}
