//! Pages of results: that they are whole.

/// Whether all elements end, each in the one in which it began; only what HTML lets stand alone may.
pub fn is_well_formed(page: &str) -> bool {
    let mut open = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        match tag {
            _ if tag.ends_with('/') => {}
            _ if tag.starts_with('/') => {
                if open.pop() != Some(name) {
                    return false;
                }
            }
            _ => open.push(name),
        }
    }
    open.is_empty()
}

/// Whether a page asks for nothing beside itself.
pub fn needs_nothing_else(page: &str) -> bool {
    let outside = ["<script", "<link", "src=", "href=", "url(", "@import"];
    outside.iter().all(|outside| !page.contains(outside))
}
