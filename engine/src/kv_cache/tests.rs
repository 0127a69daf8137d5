use super::*;

const WIDTHS: LayerWidths = LayerWidths { kv_heads: 3, key_dim: 64, value_dim: 32, window: None };

fn cache(layers: &[LayerWidths], policy: KvPolicy, context_tokens: usize) -> KvCache {
    KvCache::new(layers, &CacheOptions { policy, ..CacheOptions::default() }, context_tokens, 64).unwrap()
}

#[test]
fn what_is_held_is_layers_by_heads_by_dims_by_pages() {
    for (key_type, value_type) in KvType::ALL.into_iter().flat_map(|k| KvType::ALL.map(|v| (k, v))) {
        let options = CacheOptions { key_type, value_type, policy: KvPolicy::Full };
        let mut cache = KvCache::new(&[WIDTHS, WIDTHS], &options, 32_768, 512).unwrap();
        assert_eq!(cache.bytes(), 0);
        // bytes of 32 elements
        let of = |kv_type| match kv_type {
            KvType::F16 => 64,
            KvType::Q8_0 => 34,
            KvType::Q4_0 => 18,
        };
        let page_bytes = |pages: u64| 2 * 3 * (2 * of(key_type) + of(value_type)) * 64 * pages;
        for (tokens, pages) in [(1, 1), (63, 1), (1, 2), (35, 2), (28, 2), (1, 3), (1000, 18)] {
            cache.grow(tokens);
            assert_eq!(cache.bytes(), page_bytes(pages), "{key_type:?} {value_type:?} at {}", cache.depth());
        }
        assert_eq!(cache.bytes_max(), page_bytes(512));
    }
}

#[test]
fn a_shorter_conversation_gives_back_what_only_a_longer_one_needed() {
    let mut cache = cache(&[WIDTHS], KvPolicy::Full, 1000);
    let page_bytes = 3 * 96 * 2 * 64;
    cache.grow(640);
    assert_eq!(cache.truncate(100), 100);
    assert_eq!((cache.depth(), cache.bytes()), (100, 10 * page_bytes));
    cache.layer(0).bytes[..11 * page_bytes as usize].fill(7);
    cache.clear();
    assert_eq!((cache.depth(), cache.bytes()), (0, 2 * page_bytes));
    let bytes = cache.layer(0).bytes;
    assert!(bytes[..2 * page_bytes as usize].iter().all(|b| *b == 7));
    #[cfg(target_os = "linux")]
    assert!(bytes[4 * page_bytes as usize..10 * page_bytes as usize].iter().all(|b| *b == 0));
}

#[test]
fn places_never_overlap_and_fill_their_pages() {
    let local = LayerWidths { window: Some(100), ..WIDTHS };
    let mut cache = cache(&[WIDTHS, local, WIDTHS], KvPolicy::Full, 640);
    cache.grow(640);
    for layers in [vec![0, 2], vec![1]] {
        let len = cache.layer(layers[0]).bytes.len();
        let mut uses = vec![0; len];
        for &i in &layers {
            let layer = cache.layer(i);
            let positions = if i == 1 { 384..640 } else { 0..640 };
            for (head, position) in (0..3).flat_map(|h| positions.clone().map(move |p| (h, p))) {
                for place in [layer.keys, layer.values] {
                    uses[place.bytes_of(head, position..position + 1)].iter_mut().for_each(|n| *n += 1);
                }
            }
        }
        assert!(uses.iter().all(|n| *n == 1), "layers {layers:?}");
    }
}

#[test]
fn going_back_is_refused_once_what_would_be_seen_was_replaced() {
    // 64 + 64 positions and up to two page borders: a ring of 4 pages
    let mut cache = cache(&[WIDTHS], KvPolicy::Window { last_tokens: 64 }, 128);
    assert_eq!(cache.bytes_max(), 4 * 3 * 96 * 2 * 64);
    for _ in 0..10 {
        cache.grow(64);
    }
    // pages 6 to 9 are held; a token at 447 would see positions 384 to 447
    assert_eq!(cache.truncate(500), 500);
    assert_eq!(cache.truncate(447), 447);
    assert_eq!(cache.truncate(446), 0);
    assert_eq!(cache.depth(), 0);
    cache.grow(64);
    cache.grow(64);
    assert_eq!(cache.truncate(3), 3);
}

#[test]
fn a_policy_without_end_has_room_without_end() {
    let mut cache = cache(&[WIDTHS], KvPolicy::Sink { first_tokens: 4, last_tokens: 60 }, 64);
    for _ in 0..100 {
        cache.grow(64);
    }
    assert!(cache.room() > 1 << 40);
    assert_eq!(cache.bytes(), cache.bytes_max());
}

#[test]
fn an_impossible_context_is_refused_with_its_size() {
    for tokens in [usize::MAX, usize::MAX / 2, 1 << 55] {
        let error = KvCache::new(&[WIDTHS], &CacheOptions::default(), tokens, 512).err().unwrap();
        assert!(error.what().contains(&tokens.to_string()), "{error}");
    }
}

#[test]
fn what_cannot_be_kept_is_a_usage_error_that_says_why() {
    let said = |widths, options: CacheOptions| {
        let error = KvCache::new(&[widths], &options, 100, 64).err().unwrap();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    let coded = |kv_type| CacheOptions { key_type: KvType::F16, value_type: kv_type, ..CacheOptions::default() };
    let narrow = LayerWidths { value_dim: 40, ..WIDTHS };
    for (kv_type, name) in [(KvType::Q8_0, "q8_0"), (KvType::Q4_0, "q4_0")] {
        let said = said(narrow, coded(kv_type));
        assert!(said.contains("values of 40 elements") && said.contains(name) && said.contains("hint:"), "{said}");
    }
    let kept = |policy| said(WIDTHS, CacheOptions { policy, ..CacheOptions::default() });
    assert!(kept(KvPolicy::Window { last_tokens: 0 }).contains("a window of 0 positions"));
    assert!(kept(KvPolicy::Window { last_tokens: 101 }).contains("context of 100"));
    assert!(kept(KvPolicy::Sink { first_tokens: usize::MAX, last_tokens: 4 }).contains("context of 100"));
}

#[test]
fn policies_are_read_as_they_are_written() {
    assert_eq!("full".parse::<KvPolicy>().unwrap(), KvPolicy::Full);
    assert_eq!("window:5".parse::<KvPolicy>().unwrap(), KvPolicy::Window { last_tokens: 5 });
    assert_eq!("sink:4+1020".parse::<KvPolicy>().unwrap(), KvPolicy::Sink { first_tokens: 4, last_tokens: 1020 });
    for text in
        ["", "all", "full:3", "window", "window:", "window:-1", "window:99999999999", "sink:4", "sink:4+", "sink:+4"]
    {
        let error = text.parse::<KvPolicy>().err().unwrap_or_else(|| panic!("{text} was taken"));
        assert!(error.to_string().contains("window:N"), "{error}");
    }
}
