//! What requests to S3 are signed with: what the usual chain finds, and where that is for a while only, the last that it found for as long as it
//! is good, whoever gives the next one is away.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use reqsign_aws_v4::{Credential, DefaultCredentialProvider};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, ProvideCredential, SigningCredential as _};

use super::target::Target;

/// How long nobody is asked who has just not answered: requests would wait for it, one after the other.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long they must be good for when something is signed: reqsign's ten seconds, and one until it looks.
const GOOD_FOR: Duration = Duration::from_secs(11);

/// The chain for the store that `target` names.
pub(super) fn credentials(target: &Target) -> Renewed<DefaultCredentialProvider> {
    let mut chain = DefaultCredentialProvider::builder();
    if !target.asks_for_role() {
        chain = chain.no_imds();
    }
    Renewed::of(chain.build())
}

/// A provider, and the last that it gave.
#[derive(Debug)]
pub(super) struct Renewed<P> {
    provider: P,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    credential: Option<Credential>,
    refused: Option<Instant>,
}

impl<P> Renewed<P> {
    fn of(provider: P) -> Self {
        Renewed { provider, last: Mutex::default() }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    fn good(&self) -> Option<Credential> {
        let until = Timestamp::now() + GOOD_FOR;
        self.credential.clone().filter(|credential| credential.is_valid_at(until))
    }
}

impl<P: ProvideCredential<Credential = Credential>> ProvideCredential for Renewed<P> {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> reqsign_core::Result<Option<Credential>> {
        {
            let last = self.last();
            let is_asked = last.refused.is_none_or(|since| since.elapsed() >= ASKED_AGAIN_AFTER);
            if let Some(good) = last.good().filter(|_| !is_asked) {
                return Ok(Some(good));
            }
        }
        let found = self.provider.provide_credential(context).await;
        let mut last = self.last();
        match found {
            Ok(Some(credential)) => {
                *last = Last { credential: Some(credential.clone()), refused: None };
                Ok(Some(credential))
            }
            refused => {
                last.refused = Some(Instant::now());
                last.good().map_or(refused, |good| Ok(Some(good)))
            }
        }
    }
}
