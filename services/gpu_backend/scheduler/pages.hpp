// pages.hpp: KV pages of 64 tokens, a stack of free ones and a count of holders each.
//
// A page is held by at most one lane and at most one store order. free + held = all, always.
// Called by thread 0.
#pragma once
#include "context.hpp"

namespace hostless {

template <class P>
HOSTLESS_FN uint32_t take_page(Context<P>& c) {
  const uint32_t page = c.free_pages[--c.s.free_page_count];
  c.page_refs[page] = 1;
  return page;
}

template <class P>
HOSTLESS_FN void drop_page(Context<P>& c, uint32_t page) {
  if (--c.page_refs[page] == 0) c.free_pages[c.s.free_page_count++] = page;
}

// A lane lets go of a page; a store order may still be reading it.
template <class P>
HOSTLESS_FN void lane_drops_page(Context<P>& c, uint32_t page) {
  drop_page(c, page);
  if (c.page_refs[page] != 0) ++c.s.leaving_pages;
}

template <class P>
HOSTLESS_FN void store_holds_page(Context<P>& c, uint32_t page) {
  ++c.page_refs[page];
  ++c.s.stores_open;
}

template <class P>
HOSTLESS_FN void store_drops_page(Context<P>& c, uint32_t page) {
  drop_page(c, page);
  --c.s.stores_open;
  if (c.page_refs[page] == 0) --c.s.leaving_pages;
}

}  // namespace hostless
