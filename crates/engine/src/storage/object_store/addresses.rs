//! The addresses of a store's name: connections are spread over all of them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Asks the system for addresses, and begins with another one each time.
#[derive(Default)]
pub(super) struct InTurn {
    times: AtomicUsize,
}

impl Resolve for InTurn {
    fn resolve(&self, name: Name) -> Resolving {
        let times = self.times.fetch_add(1, Relaxed);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(turned(found, times).into_iter()) as Addrs)
        })
    }
}

/// The addresses in the system's order of families, turned within each: which family is better the system knows.
fn turned(found: Vec<SocketAddr>, times: usize) -> Vec<SocketAddr> {
    let is_first = found.first().map(SocketAddr::is_ipv4);
    let (mut preferred, mut others): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|address| Some(address.is_ipv4()) == is_first);
    for family in [&mut preferred, &mut others] {
        let by = times % family.len().max(1);
        family.rotate_left(by);
    }
    preferred.extend(others);
    preferred
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_the_first_one_in_turn() {
        let found: Vec<SocketAddr> =
            ["[::1]:0", "[::2]:0", "10.0.0.1:0"].iter().map(|text| text.parse().unwrap()).collect();
        let first: Vec<SocketAddr> = (0..4).map(|times| turned(found.clone(), times)[0]).collect();
        assert_eq!(first, [found[0], found[1], found[0], found[1]]);
        assert!((0..4).all(|times| turned(found.clone(), times)[2] == found[2]), "the other family stays behind");
        assert!(turned(Vec::new(), 3).is_empty());
    }
}
