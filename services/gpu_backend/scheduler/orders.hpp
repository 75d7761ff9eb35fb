// orders.hpp: orders to the KV agent (step.hpp).
//
// Orders are reserved by thread 0 as things happen and shown to the agent together by `flush_orders`, after
// the team has copied the stored blocks' tokens into them: before the slot can end and its arena
// be reused. The core never waits for the agent: where an order finds no room, the block is dropped,
// which costs a later miss and nothing else.
//
// Room is kept so that the end of every request that the agent knows can always be told:
//   capacity - (reserved - released) >= ends_owed
#pragma once
#include "pages.hpp"

namespace hostless {

// Room for one order of this request besides all ends that are owed, its own included.
template <class P>
HOSTLESS_FN bool order_room(const Context<P>& c, const Request& r) {
  const uint64_t used = c.s.orders_reserved - c.s.orders_released;
  const uint64_t owed = c.s.ends_owed + (r.owes_end ? 0 : 1);
  return used + 1 + owed <= c.s.settings.order_capacity;
}

template <class P>
HOSTLESS_FN KvOrder& reserve_order(Context<P>& c, KvOrderKind kind, uint32_t slot, uint32_t generation) {
  KvOrder& order = c.order(c.s.orders_reserved++);
  order.kind = static_cast<uint32_t>(kind);
  order.slot = slot;
  order.generation = generation;
  order.lane = kNone;
  order.first_block = order.block_count = order.page = 0;
  order.kv_reads = order.transfer = 0;
  return order;
}

HOSTLESS_FN void name_root(KvOrder& order, const RequestRecord& record) {
  for (uint32_t i = 0; i < sizeof(order.kv_root); ++i) order.kv_root[i] = record.kv_root[i];
}

template <class P>
HOSTLESS_FN void owe_end(Context<P>& c, Request& r) {
  if (r.owes_end) return;
  r.owes_end = 1;
  ++c.s.ends_owed;
}

template <class P>
HOSTLESS_FN void post_end(Context<P>& c, uint32_t slot, uint32_t generation) {
  reserve_order(c, KvOrderKind::end, slot, generation);
  --c.s.ends_owed;
}

// An order of this request that the agent answers; false if there is no room for it.
template <class P>
HOSTLESS_FN bool post_exchange(Context<P>& c, KvOrderKind kind, uint32_t slot, uint32_t blocks) {
  Request& r = c.requests[slot];
  if (!order_room(c, r)) return false;
  owe_end(c, r);
  c.p.store_relaxed(&c.load_done[slot], uint64_t{0});
  KvOrder& order = reserve_order(c, kind, slot, r.record.generation);
  order.lane = r.lane;
  order.first_block = kind == KvOrderKind::load ? 0 : r.record.cached_tokens / kPageTokens;
  order.block_count = blocks;
  order.kv_reads = r.record.kv_reads;
  order.transfer = r.record.transfer;
  name_root(order, r.record);
  return true;
}

// Asks for the request's cached blocks, or all that were received; false if there is no room to ask.
template <class P>
HOSTLESS_FN bool post_load(Context<P>& c, uint32_t slot) {
  Request& r = c.requests[slot];
  const uint32_t blocks = r.receives ? pages_for(r.record.prompt_count) : r.record.cached_tokens / kPageTokens;
  if (!post_exchange(c, KvOrderKind::load, slot, blocks)) return false;
  r.load_asked = 1;
  bump(c.p, c.s.counters.loads);
  return true;
}

// Tells the agent that a prompt's KV will come, from where its hit is read, and how much there is (D1, D2).
template <class P>
HOSTLESS_FN bool post_receive(Context<P>& c, uint32_t slot) {
  return post_exchange(c, KvOrderKind::receive, slot, pages_for(c.requests[slot].record.prompt_count));
}

// Tells the agent of a prompt that it is going to hand over, so that it can begin with what is computed first. Where
// there is no room it hears of it when all is computed.
template <class P>
HOSTLESS_FN void post_prefill(Context<P>& c, uint32_t slot) {
  Request& r = c.requests[slot];
  if (!order_room(c, r)) return;
  owe_end(c, r);
  KvOrder& order = reserve_order(c, KvOrderKind::prefill, slot, r.record.generation);
  order.lane = r.lane;
  order.block_count = pages_for(r.record.prompt_count);
  order.transfer = r.record.transfer;
}

// Has the agent hand the prompt's pages and the first token over (D3).
template <class P>
HOSTLESS_FN bool post_send(Context<P>& c, uint32_t slot) {
  const Request& r = c.requests[slot];
  if (!post_exchange(c, KvOrderKind::send, slot, pages_for(r.record.prompt_count))) return false;
  c.order(c.s.orders_reserved - 1).tokens[0] = r.last_token;
  return true;
}

template <class P>
HOSTLESS_FN bool agent_moves(const Context<P>& c) {
  return c.s.now_ns - c.s.agent_moved_ns <= c.s.settings.agent_patience_ns;
}

// Offers the blocks that have filled since the last look (D4). A dropped block ends the offers of its
// request, because block keys are chained.
template <class P>
HOSTLESS_FN void offer_blocks(Context<P>& c, uint32_t slot) {
  Request& r = c.requests[slot];
  for (const uint32_t full = r.computed / kPageTokens; r.persist && r.offered < full; ++r.offered) {
    if (!order_room(c, r) || c.s.stores_open >= c.s.settings.store_limit) {
      r.persist = 0;
      bump(c.p, c.s.counters.blocks_dropped);
      return;
    }
    owe_end(c, r);
    KvOrder& order = reserve_order(c, KvOrderKind::store, slot, r.record.generation);
    order.lane = r.lane;
    order.first_block = r.offered;
    order.block_count = 1;
    order.page = c.block_table(r.lane)[r.offered];
    name_root(order, r.record);
    store_holds_page(c, order.page);
    bump(c.p, c.s.counters.blocks_offered);
  }
}

// The pages of a load or send, for an agent whose memory is not the graphs'. One of kPageTokens callers.
template <class P>
HOSTLESS_FN void show_pages(Context<P>& c, const KvOrder& order, uint32_t caller) {
  if (&c.agent == &c.engine) return;
  auto* tables = c.template at<uint32_t>(&c.agent, c.engine.block_tables_offset);
  uint32_t* row = tables + uint64_t{order.lane} * c.s.settings.lane_pages;
  for (uint32_t i = caller; i < order.block_count; i += kPageTokens) row[i] = c.block_table(order.lane)[i];
}

// The whole team: completes the reserved orders and shows them to the agent. All see orders_reserved alike.
template <class P>
HOSTLESS_FN void flush_orders(Context<P>& c) {
  const uint64_t head = c.s.orders_published;
  const auto fresh = static_cast<uint32_t>(c.s.orders_reserved - head);
  if (fresh == 0) return;
  for_each(c.p, fresh * kPageTokens, [&](uint32_t i) {
    KvOrder& order = c.order(head + i / kPageTokens);
    if (order.kind == static_cast<uint32_t>(KvOrderKind::load) ||
        order.kind == static_cast<uint32_t>(KvOrderKind::send))
      return show_pages(c, order, i % kPageTokens);
    if (order.kind != static_cast<uint32_t>(KvOrderKind::store)) return;
    const uint32_t position = order.first_block * kPageTokens + i % kPageTokens;
    order.tokens[i % kPageTokens] = token_at(c, c.requests[order.slot], position);
  });
  lead(c.p, [&] {
    c.s.orders_published = c.s.orders_reserved;
    c.p.store_release(&c.agent.orders_head, c.s.orders_published);
  });
}

// Thread 0: takes back the pages of orders that the agent has passed. A tail that makes no sense is ignored.
template <class P>
HOSTLESS_FN void collect_orders(Context<P>& c) {
  CoreState& s = c.s;
  const uint64_t tail = c.p.orders_tail(c.agent);
  const uint64_t passed = tail - s.orders_released;
  if (passed > s.orders_published - s.orders_released) return;
  for (; s.orders_released != tail; ++s.orders_released) {
    const KvOrder& order = c.order(s.orders_released);
    if (order.kind == static_cast<uint32_t>(KvOrderKind::store)) store_drops_page(c, order.page);
  }
  if (passed != 0 || tail == s.orders_published) s.agent_moved_ns = s.now_ns;
}

}  // namespace hostless
