//! Tests of the store: tenants, limits, shared turns, pages.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const LIMITS: Limits = Limits { bytes_max: 100_000, tenant_bytes_max: 40_000, age_s_max: 60 };

/// A response whose turn has about this many bytes.
fn stored(key: u128, previous: &[Arc<Turn>], bytes: usize) -> Stored {
    let json = |value: Value| value.to_string().into_bytes().into();
    let input = json(json!([{"id": format!("msg_{key}"), "text": "x".repeat(bytes)}]));
    let response = json(json!({"output": [{"id": format!("out_{key}"), "text": "0123456789"}]}));
    Stored { earlier: previous.to_vec(), own: Arc::new(Turn { key, input, response }), owner: None }
}

fn turns(stored: &Stored) -> Vec<Arc<Turn>> {
    stored.turns().cloned().collect()
}

fn id(key: u128) -> String {
    ids::response(key)
}

#[test]
fn a_tenant_sees_only_its_own_responses() {
    let mut store = Store::new(LIMITS);
    assert!(store.insert(0, "a", stored(1, &[], 10)));
    assert_eq!(store.get(0, "a", &id(1)).unwrap().id(), id(1));
    assert!(store.get(0, "b", &id(1)).is_none() && !store.delete(0, "b", &id(1)));
    assert!(store.delete(0, "a", &id(1)) && !store.delete(0, "a", &id(1)));
    assert_eq!((store.len(), store.bytes(), store.is_empty()), (0, 0, true));
}

#[test]
fn responses_expire() {
    let mut store = Store::new(LIMITS);
    store.insert(0, "a", stored(1, &[], 10));
    store.insert(30, "b", stored(2, &[], 10));
    assert!(store.get(59, "a", &id(1)).is_some());
    assert!(store.get(60, "a", &id(1)).is_none());
    assert_eq!(store.len(), 1);
    assert!(store.get(90, "b", &id(2)).is_none());
    assert_eq!(store.bytes(), 0);
}

#[test]
fn a_tenant_at_its_limit_loses_its_own_oldest() {
    let mut store = Store::new(LIMITS);
    store.insert(0, "b", stored(100, &[], 9_000));
    for key in 0..10 {
        assert!(store.insert(0, "a", stored(key, &[], 9_000)));
    }
    assert!(store.get(0, "b", &id(100)).is_some());
    assert!(store.get(0, "a", &id(9)).is_some() && store.get(0, "a", &id(0)).is_none());
    assert!(store.bytes() <= 50_000, "{}", store.bytes());
    assert!(!store.insert(0, "a", stored(11, &[], 50_000)), "larger than the limit");
    assert!(store.get(0, "a", &id(9)).is_some(), "and nothing is lost for it");
}

#[test]
fn beyond_the_limit_of_all_the_largest_tenant_loses() {
    let mut store = Store::new(LIMITS);
    store.insert(0, "small", stored(100, &[], 1_000));
    for key in 0..40 {
        store.insert(0, ["a", "b", "c"][key as usize % 3], stored(key, &[], 9_000));
        assert!(store.bytes() <= LIMITS.bytes_max);
    }
    assert!(store.get(0, "small", &id(100)).is_some());
}

#[test]
fn a_conversation_costs_each_turn_once_and_outlives_its_beginning() {
    let mut store = Store::new(LIMITS);
    let mut turns = Vec::new();
    for key in 0..9 {
        let next = stored(key, &turns, 2_000);
        turns = self::turns(&next);
        assert!(store.insert(0, "a", next));
    }
    assert!(store.bytes() < 9 * 4_000, "{}", store.bytes());
    for key in 0..8 {
        assert!(store.delete(0, "a", &id(key)));
    }
    let last = store.get(0, "a", &id(8)).unwrap();
    assert_eq!(last.turns().count(), 9);
    assert!(store.bytes() > 9 * 2_000, "its turns are counted: {}", store.bytes());
    store.delete(0, "a", &id(8));
    assert_eq!(store.bytes(), 0);
}

#[test]
fn input_items_are_listed_in_pages() {
    let stored = stored(2, &turns(&stored(1, &[], 1)), 1);
    let list = |query: &str| -> Value {
        let page = Page::read(Some(query)).unwrap();
        serde_json::from_slice(&stored.input_items(&page).unwrap()).unwrap()
    };
    let ids = |list: &Value| -> Vec<String> {
        let ids = list["data"].as_array().unwrap().iter();
        ids.map(|item| item["id"].as_str().unwrap().into()).collect()
    };
    let all = list("");
    assert_eq!(ids(&all), ["msg_2", "out_1", "msg_1"]);
    assert_eq!((&all["first_id"], &all["has_more"]), (&json!("msg_2"), &json!(false)));
    let first = list("order=asc&limit=2&include[]=x");
    assert_eq!(
        (ids(&first), &first["has_more"]),
        (vec!["msg_1".into(), "out_1".into()], &json!(true))
    );
    assert_eq!(ids(&list("order=asc&after=out_1")), ["msg_2"]);
    assert_eq!(ids(&list("after=msg_1")), [""; 0]);
    for query in ["limit=0", "limit=101", "limit=x", "order=up"] {
        assert!(Page::read(Some(query)).is_err(), "{query}");
    }
    let unknown = Page::read(Some("after=msg_9")).unwrap();
    assert_eq!(stored.input_items(&unknown).unwrap_err().param.as_deref(), Some("after"));
}

proptest! {
    #[test]
    fn bytes_are_those_of_what_is_there(
        steps in prop::collection::vec((0..3usize, 0..4u8, 0..12_000usize, 0..20u64), 1..60),
    ) {
        let mut store = Store::new(LIMITS);
        let (mut now, mut last) = (0, Vec::new());
        for (key, (tenant, action, bytes, seconds)) in steps.into_iter().enumerate() {
            now += seconds;
            let tenant = ["a", "b", "c"][tenant];
            match action {
                0 => last.clear(),
                1 => { store.delete(now, tenant, &id(key as u128 / 2)); }
                _ => {
                    let previous = if tenant == "a" { std::mem::take(&mut last) } else { vec![] };
                    let next = stored(key as u128, &previous, bytes);
                    if tenant == "a" {
                        last = turns(&next);
                    }
                    store.insert(now, tenant, next);
                }
            }
            let mut counted = 0;
            for tenant in store.tenants.values() {
                let mut turns = HashMap::new();
                for (_, stored) in tenant.responses.values() {
                    counted += stored.bytes();
                    turns.extend(stored.turns().map(|turn| (turn.key, turn.bytes())));
                }
                counted += turns.values().sum::<usize>();
                prop_assert!(tenant.bytes <= LIMITS.tenant_bytes_max);
            }
            prop_assert_eq!(store.bytes(), counted);
            prop_assert!(counted <= LIMITS.bytes_max);
        }
    }
}
