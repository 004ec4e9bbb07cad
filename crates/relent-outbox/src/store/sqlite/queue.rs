//! What has to stay true when a delivery changes its state.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension};

/// Endpoints and order keys whose deliveries have changed their states.
#[derive(Default)]
pub(super) struct Touched {
    endpoints: BTreeSet<i64>,
    orders: BTreeSet<(i64, String)>,
}

impl Touched {
    pub(super) fn add(&mut self, endpoint: i64, order: Option<String>) {
        self.endpoints.insert(endpoint);
        if let Some(order) = order {
            self.orders.insert((endpoint, order));
        }
    }

    /// Makes true what follows from the states.
    pub(super) fn follow(self, connection: &Connection) -> rusqlite::Result<()> {
        for (endpoint, order) in &self.orders {
            advance(connection, *endpoint, order)?;
        }
        for endpoint in self.endpoints {
            wake(connection, endpoint)?;
        }
        Ok(())
    }
}

/// Of the messages of an order key only the first may be claimed: the others are behind it, where no claim looks, so that
/// a long line costs no more than a short one.
fn advance(connection: &Connection, endpoint: i64, order: &str) -> rusqlite::Result<()> {
    let mut first = connection.prepare_cached(
        "WITH line AS NOT MATERIALIZED (SELECT row, state FROM relent_delivery_1 WHERE endpoint = ?1 AND order_key = ?2)
         SELECT min(row) FROM (
             SELECT min(row) AS row FROM line WHERE state = 0
             UNION ALL SELECT min(row) FROM line WHERE state = 1
             UNION ALL SELECT min(row) FROM line WHERE state = 5
             UNION ALL SELECT min(row) FROM line
                 WHERE state = 3 AND EXISTS (SELECT 1 FROM relent_endpoint_1 WHERE id = ?1 AND after_dead = 0))",
    )?;
    let first: Option<i64> = first.query_row((endpoint, order), |row| row.get(0))?;
    let mut hold = connection.prepare_cached(
        "UPDATE relent_delivery_1 SET state = 5
         WHERE endpoint = ?1 AND order_key = ?2 AND state = 0 AND row IS NOT ?3",
    )?;
    hold.execute((endpoint, order, first))?;
    let mut free = connection
        .prepare_cached("UPDATE relent_delivery_1 SET state = 0 WHERE row = ?1 AND state = 5")?;
    free.execute([first])?;
    Ok(())
}

/// Writes down when a worker has something to do at the endpoint.
pub(super) fn wake(connection: &Connection, endpoint: i64) -> rusqlite::Result<()> {
    let mut find = connection.prepare_cached(
        "SELECT wake, CASE
             WHEN EXISTS (SELECT 1 FROM relent_delivery_1
                 WHERE endpoint = ?1 AND state = 1 AND fence < e.fence + (e.owner = '')) THEN 0
             ELSE (SELECT min(due) FROM relent_delivery_1 WHERE endpoint = ?1 AND state = 0) END
         FROM relent_endpoint_1 AS e WHERE id = ?1",
    )?;
    let found = find.query_row([endpoint], |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Option<(Option<i64>, Option<i64>)> = found.optional()?;
    if let Some((was, is)) = found
        && was != is
    {
        let mut set =
            connection.prepare_cached("UPDATE relent_endpoint_1 SET wake = ?2 WHERE id = ?1")?;
        set.execute((endpoint, is))?;
    }
    Ok(())
}
