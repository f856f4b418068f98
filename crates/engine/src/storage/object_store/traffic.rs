//! How many requests with content a store gets at once, and which of its endpoints gets the next one.
//!
//! Additive increase, multiplicative decrease: a store that asks for fewer requests or gives no answer gets half of those that
//! were under way, and each answer after that raises the number a little. Without such answers there is no limit but
//! the parts that uploads and reads have under way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::Notify;

/// An endpoint that failed is left alone for so long, if there are others.
const LEFT_ALONE_FOR: Duration = Duration::from_secs(10);
/// More than any backup has under way.
const LIMIT_MAX: f64 = 4096.0;

/// The requests to one store that are under way, from all objects of this process. Small ones neither wait nor tell how much
/// the store takes.
pub(super) struct Traffic {
    state: Mutex<State>,
    freed: Notify,
}

struct State {
    endpoints: Vec<Endpoint>,
    /// Where the search for an endpoint begins.
    next: usize,
    limit: f64,
    large: usize,
    lowered_at: Option<Instant>,
}

#[derive(Clone, Default)]
struct Endpoint {
    under_way: usize,
    failed_at: Option<Instant>,
}

impl State {
    /// The endpoint with the fewest requests under way of those that have not just failed.
    fn choose(&mut self, now: Instant) -> usize {
        let count = self.endpoints.len();
        let rank = |index: usize| {
            let endpoint = &self.endpoints[index];
            let has_failed = endpoint.failed_at.is_some_and(|at| now.duration_since(at) < LEFT_ALONE_FOR);
            (has_failed, endpoint.under_way, (index + count - self.next) % count)
        };
        let chosen = (0..count).min_by_key(|index| rank(*index)).unwrap_or(0);
        self.next = (chosen + 1) % count;
        chosen
    }

    /// Half of what is under way; once for all that were sent before.
    fn lower(&mut self, sent_at: Instant, now: Instant) {
        if self.lowered_at.is_none_or(|at| sent_at > at) {
            self.limit = (self.large as f64 / 2.0).max(1.0);
            self.lowered_at = Some(now);
        }
    }

    /// One more after as many answers as there may be requests.
    fn raise(&mut self) {
        self.limit = (self.limit + 1.0 / self.limit).min(LIMIT_MAX);
    }
}

impl Traffic {
    /// That of a store with so many endpoints.
    pub(super) fn new(endpoint_count: usize) -> Self {
        let endpoints = vec![Endpoint::default(); endpoint_count.max(1)];
        let state = State { endpoints, next: 0, limit: LIMIT_MAX, large: 0, lowered_at: None };
        Traffic { state: Mutex::new(state), freed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more request may be sent. Only those with content wait: a sign of life must not stand behind them.
    pub(super) async fn enter(self: &Arc<Self>, is_large: bool) -> Turn {
        loop {
            let freed = self.freed.notified();
            if let Some(turn) = self.try_enter(is_large) {
                return turn;
            }
            freed.await;
        }
    }

    fn try_enter(self: &Arc<Self>, is_large: bool) -> Option<Turn> {
        let mut state = self.state();
        if is_large && state.large as f64 + 1.0 > state.limit {
            return None;
        }
        state.large += usize::from(is_large);
        let sent_at = Instant::now();
        let endpoint = state.choose(sent_at);
        state.endpoints[endpoint].under_way += 1;
        Some(Turn { traffic: Arc::clone(self), endpoint, is_large, sent_at, is_answered: false })
    }
}

/// The right to have one request under way, until it is dropped. One that was never answered counts as a failure.
pub(super) struct Turn {
    traffic: Arc<Traffic>,
    endpoint: usize,
    is_large: bool,
    sent_at: Instant,
    is_answered: bool,
}

impl Turn {
    /// The place of the endpoint that is asked.
    pub(super) fn endpoint(&self) -> usize {
        self.endpoint
    }

    /// The endpoint answered.
    pub(super) fn answered(&mut self, status: StatusCode) {
        self.is_answered = true;
        let now = Instant::now();
        let mut state = self.traffic.state();
        state.endpoints[self.endpoint].failed_at = status.is_server_error().then_some(now);
        match status {
            _ if !self.is_large => {}
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => state.lower(self.sent_at, now),
            _ => state.raise(),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.traffic.state();
        if !self.is_answered {
            let now = Instant::now();
            state.endpoints[self.endpoint].failed_at = Some(now);
            // Where there are others, it is the endpoint that has too much of it, not the store.
            if self.is_large && state.endpoints.len() == 1 {
                state.lower(self.sent_at, now);
            }
        }
        state.endpoints[self.endpoint].under_way -= 1;
        state.large -= usize::from(self.is_large);
        let has_room = state.large as f64 + 1.0 <= state.limit;
        drop(state);
        if has_room {
            // Whoever finds no room after all waits again: the limit may have risen by more than this one.
            self.traffic.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(endpoint_count: usize) -> Arc<Traffic> {
        Arc::new(Traffic::new(endpoint_count))
    }

    fn end(mut turn: Turn, status: u16) {
        turn.answered(StatusCode::from_u16(status).unwrap());
    }

    #[test]
    fn a_store_that_asks_for_fewer_gets_half_and_slowly_more() {
        let traffic = of(1);
        let mut turns: Vec<Turn> = (0..16).map(|_| traffic.try_enter(true).unwrap()).collect();
        // All were sent before the first answer: it is one sign, not eight.
        turns.drain(..8).for_each(|turn| end(turn, 503));
        assert!(traffic.try_enter(true).is_none(), "eight are under way; what carries nothing waits for nobody:");
        end(traffic.try_enter(false).unwrap(), 200);
        turns.into_iter().for_each(|turn| end(turn, 200));
        let most = |traffic: &Arc<Traffic>| {
            let turns: Vec<Turn> = std::iter::from_fn(|| traffic.try_enter(true)).take(100).collect();
            let count = turns.len();
            turns.into_iter().for_each(|turn| end(turn, 404));
            count
        };
        let counts: Vec<usize> = (0..5).map(|_| most(&traffic)).collect();
        assert!((8..=9).contains(&counts[0]), "{counts:?}");
        assert!(counts.windows(2).all(|pair| (pair[0]..=pair[0] + 1).contains(&pair[1])), "{counts:?}");
        assert!(counts[4] > counts[0] + 1, "{counts:?}");
    }

    #[test]
    fn one_request_is_always_under_way_and_no_answer_is_a_sign() {
        let traffic = of(1);
        for _ in 0..5 {
            drop(traffic.try_enter(true).unwrap());
            drop(traffic.try_enter(false).unwrap());
        }
        let turn = traffic.try_enter(true).unwrap();
        assert!(traffic.try_enter(true).is_none());
        drop(turn);
    }

    #[test]
    fn requests_are_spread_over_endpoints_and_those_that_fail_are_left_alone() {
        let traffic = of(3);
        let turns: Vec<Turn> = (0..6).map(|_| traffic.try_enter(true).unwrap()).collect();
        let places: Vec<usize> = turns.iter().map(Turn::endpoint).collect();
        assert_eq!(places, [0, 1, 2, 0, 1, 2]);
        // One that takes long gets fewer.
        turns.into_iter().filter(|turn| turn.endpoint() != 1).for_each(|turn| end(turn, 200));
        let busy = traffic.try_enter(true).unwrap();
        let at = busy.endpoint();
        end(busy, 500);
        let places: Vec<usize> = (0..4)
            .map(|_| {
                let turn = traffic.try_enter(false).unwrap();
                let place = turn.endpoint();
                end(turn, 200);
                place
            })
            .collect();
        assert!(!places.contains(&at), "{places:?} without {at}");
        // Where all fail, all are asked.
        (0..3).for_each(|_| end(traffic.try_enter(false).unwrap(), 500));
        assert!(traffic.try_enter(false).is_some());
    }
}
