// What the main kernel of a backward needs of each query: lse in base 2 and -delta = dlse - rowsum(dO * O), padded to whole
// blocks; sums of dQ that start at 0, and, where they have an order, who adds first, or where they are recycled, that none has
// added; and sums of dK and dV that start at 0, where there are any. And what packed sequences need: the order of the blocks of keys,
// and gradients of 0 in rows of no sequence. A CTA has a piece of the queries of a head, or of the sums of dK and dV.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <cute/config.hpp>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/common/backward_tile.h"
#include "cute_kernels/device.h"
#include "cute_kernels/row_softmax.h"

namespace pyflash::backward {

inline constexpr int kPreprocessThreads = 256;

// CTAs of the kernels before and after the main one, behind those of the pieces of keys.
constexpr int64_t n_query_pieces(BackwardParams const& problem) {
  return problem.n_slice_rows() / kQueriesOfPiece;
}
constexpr int64_t n_sum_pieces(BackwardParams const& problem) {
  return problem.n_slice_sum_rows() / kQueriesOfPiece;
}

// The piece of queries that a CTA of a kernel before or after the main one has.
struct QueryPiece {
  int first_query;  // of its sequence
  int head;
  int batch;     // of the tensors
  int row;       // of the first query, in the workspace
  Rows queries;  // of the sequence
  int sequence;

  // index: below n_query_pieces.
  CUTE_DEVICE static QueryPiece of(BackwardParams const& problem, int index) {
    int const n_pieces = problem.padded_q / kQueriesOfPiece;
    index += problem.first_slice_row() / kQueriesOfPiece;
    int const rest = index / n_pieces;
    return of(problem, rest / problem.heads, rest % problem.heads,
              index % n_pieces * kQueriesOfPiece);
  }
  // row: of the workspace of a head, a multiple of kQueriesOfPiece.
  CUTE_DEVICE static QueryPiece of(AttentionGradients const& problem, int batch, int head,
                                   int row) {
    QueryPiece piece{row,
                     head,
                     batch,
                     problem.workspace_row(batch, head, row),
                     {0, problem.q_sequences.longest},
                     batch};
    if (problem.q_sequences.is_packed()) {
      device::Loader const load;
      BlockedRows const blocks = problem.blocked_queries();
      piece.sequence = blocks.sequence_at(piece.first_query, problem.batch, load);
      piece.first_query -= blocks.begin_of(piece.sequence, load);
      piece.queries = problem.q_sequences.rows_of(piece.sequence, load);
      if (piece.first_query < 0) {  // cu_seqlens_q does not ascend
        piece.queries.length = piece.first_query = 0;
      }
    }
    return piece;
  }

  // The first element of a row of a tensor of queries.
  template <class Element>
  CUTE_DEVICE Element* row_of(Element* tensor, TensorStrides const& strides, int query) const {
    return tensor + batch * strides.batch + head * strides.head +
           (queries.begin + query) * strides.row;
  }
};

template <class Element>
CUTE_DEVICE float dot(uint4 const& a, uint4 const& b) {
  constexpr int kVector = sizeof(uint4) / sizeof(Element);
  float sum = 0.f;
  CUTE_UNROLL
  for (int i = 0; i < kVector; ++i) {
    sum = fmaf(float(reinterpret_cast<Element const*>(&a)[i]),
               float(reinterpret_cast<Element const*>(&b)[i]), sum);
  }
  return sum;
}

// Writes lse and -delta of a query; of none, past the end.
CUTE_DEVICE void store_numbers(BackwardParams const& problem, QueryPiece const& piece, int query,
                               int row, float product) {
  float lse2 = INFINITY;
  float minus_delta = 0.f;
  if (query < piece.queries.length) {
    int64_t const from = piece.batch * problem.lse_strides.batch +
                         piece.head * problem.lse_strides.head + piece.queries.begin + query;
    float const lse = device::load(problem.lse + from);
    if (lse != -INFINITY) {  // else it attends nothing
      lse2 = lse * kLog2e;
      minus_delta = (problem.grad_lse ? device::load(problem.grad_lse + from) : 0.f) - product;
    }
  }
  device::store(problem.lse2 + row, lse2);
  device::store(problem.minus_delta + row, minus_delta);
}

// Whether no sequence has rows of another. By a warp.
CUTE_DEVICE bool ascend(Sequences const& sequences, int batch, int lane) {
  if (!sequences.is_packed()) {
    return true;
  }
  device::Loader const load;
  bool wrong = load(sequences.starts) < 0 || load(sequences.starts + batch) > sequences.total;
  for (int i = lane; i < batch; i += 32) {
    wrong = wrong || load(sequences.starts + i) > load(sequences.starts + i + 1);
  }
  return !device::any_lane(wrong);
}

// Writes which block of keys is first to add to the sums of the piece. By a warp.
template <int kColumns>
CUTE_DEVICE void store_turns(BackwardParams const& problem, QueryPiece const& piece, int lane) {
  constexpr int kTurns = kQueriesOfPiece * kColumns / kSumsOfTurn;
  static_assert(kTurns <= 32);
  device::Loader const load;
  int const first_of_block = piece.first_query / problem.block_q * problem.block_q;
  int const n_keys = problem.k_sequences.rows_of(piece.sequence, load).length;
  bool const in_order = ascend(problem.q_sequences, problem.batch, lane) &&
                        ascend(problem.k_sequences, problem.batch, lane);
  if (lane < kTurns) {
    device::store(problem.turns + int64_t(piece.row) * kColumns / kSumsOfTurn + lane,
                  in_order ? float(problem.first_turn(first_of_block, piece.queries.length, n_keys))
                           : -INFINITY);
  }
}

// The blocks of queries that attend a block of keys of the packed sequences.
CUTE_DEVICE int queries_attending(AttentionGradients const& problem, int n_block) {
  constexpr BackwardFeatures kAnyMask{.right_window = true, .left_window = true, .packed = true};
  Tile<kAnyMask> tile{.problem = problem};
  tile.find_sequence(n_block * problem.block_k, problem.block_k);
  return tile.blocks_attending(problem.block_k, problem.block_q).size();
}

// Writes the places of every n_warps-th block of keys, from block `warp` on, in the order of their tiles. By a warp.
CUTE_DEVICE void store_order(AttentionGradients const& problem, int warp, int n_warps, int lane) {
  int const n_blocks = int(problem.n_key_blocks());
  for (int block = warp; block < n_blocks; block += n_warps) {
    int const length = queries_attending(problem, block);
    int place = 0;
    for (int i = lane; i < n_blocks; i += 32) {
      int const other = queries_attending(problem, i);
      place += other > length || (other == length && i < block);
    }
    CUTE_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      place += int(device::shfl_xor_bits(place, lanes));
    }
    if (lane == 0) {
      device::store(problem.order_of_keys + place, float(block));
    }
  }
}

// Writes zeros to the rows of a tensor that no packed sequence has: before the first and behind the last one. By n_threads threads.
template <class Element>
CUTE_DEVICE void zero_rows_of_none(Sequences const& sequences, int batch, void* tensor,
                                   TensorStrides const& strides, int heads, int d_head,
                                   int64_t thread, int64_t n_threads) {
  constexpr int kVector = sizeof(uint4) / sizeof(Element);
  device::Loader const load;
  int const begin = smaller(larger(load(sequences.starts), 0), sequences.total);
  int const end = smaller(larger(load(sequences.starts + batch), begin), sequences.total);
  int const of_head = d_head / kVector;
  int const of_row = heads * of_head;
  int64_t const n = int64_t(begin + sequences.total - end) * of_row;
  for (int64_t i = thread; i < n; i += n_threads) {
    int const row = int(i / of_row);
    int const vector = int(i % of_row);
    auto* const out = static_cast<Element*>(tensor) +
                      (row < begin ? row : row - begin + end) * strides.row +
                      vector / of_head * strides.head + vector % of_head * kVector;
    device::store(reinterpret_cast<uint4*>(out), uint4{});
  }
}

// n_piece: of queries, that the CTA has.
template <class Element>
CUTE_DEVICE void prepare_packed(BackwardParams const& problem, int n_piece) {
  int const thread = device::thread_idx();
  int64_t const n_threads = n_query_pieces(problem) * kPreprocessThreads;
  int64_t const in_grid = int64_t(n_piece) * kPreprocessThreads + thread;
  if (problem.sorts_key_blocks()) {
    store_order(problem, int(in_grid / 32), int(n_threads / 32), thread % 32);
  }
  auto zero = [&](Sequences const& sequences, void* tensor, TensorStrides const& strides,
                  int heads) {
    zero_rows_of_none<Element>(sequences, problem.batch, tensor, strides, heads, problem.d_head,
                               in_grid, n_threads);
  };
  zero(problem.q_sequences, problem.dq, problem.dq_strides, problem.heads);
  zero(problem.k_sequences, problem.dk, problem.dk_strides, problem.heads_kv);
  zero(problem.k_sequences, problem.dv, problem.dv_strides, problem.heads_kv);
}

// Sums of a piece start at 0.
template <int kColumns>
CUTE_DEVICE void clear_sums(float* sums) {
  auto* const vectors = reinterpret_cast<float4*>(sums);
  CUTE_UNROLL
  for (int i = 0; i < kQueriesOfPiece * kColumns / 4; i += kPreprocessThreads) {
    device::store(vectors + i + device::thread_idx(), float4{});
  }
}

// kColumns: those of the config.
template <class Element, int kColumns>
CUTE_DEVICE void preprocess_cta(BackwardParams const& problem) {
  constexpr int kVector = 8;  // elements in 16 bytes
  constexpr int kLanesPerRow =
      std::bit_ceil(unsigned(kColumns / kVector));  // some without a vector
  constexpr int kRowsAtATime = kPreprocessThreads / kLanesPerRow;
  device::wait_for_previous_kernel();
  device::launch_dependents();
  int const n_key_pieces = problem.n_key_pieces();
  if (device::block_idx() < n_key_pieces) {
    int const row = problem.first_key_row() + device::block_idx() * kQueriesOfPiece;
    clear_sums<kColumns>(problem.dkv_sum + int64_t(row) * kColumns);
    return;
  }
  QueryPiece const piece = QueryPiece::of(problem, device::block_idx() - n_key_pieces);
  int const thread = device::thread_idx();
  int const column = thread % kLanesPerRow * kVector;
  if (problem.q_sequences.is_packed()) {
    prepare_packed<Element>(problem, device::block_idx() - n_key_pieces);
  }
  auto row_of = [&](void const* tensor, TensorStrides const& strides, int query) {
    return reinterpret_cast<uint4 const*>(
        piece.row_of(static_cast<Element const*>(tensor), strides, query) + column);
  };
  CUTE_UNROLL
  for (int first = 0; first < kQueriesOfPiece; first += kRowsAtATime) {
    int const row = first + thread / kLanesPerRow;
    int const query = piece.first_query + row;
    float product = 0.f;
    if (query < piece.queries.length && column < problem.d_head) {
      product = dot<Element>(device::load(row_of(problem.o, problem.o_strides, query)),
                             device::load(row_of(problem.grad_o, problem.grad_o_strides, query)));
    }
    CUTE_UNROLL
    for (int lanes = kLanesPerRow / 2; lanes > 0; lanes /= 2) {
      product += device::shfl_xor(product, lanes);
    }
    if (column == 0) {
      store_numbers(problem, piece, query, piece.row + row, product);
    }
  }
  if (problem.deterministic && thread < 32) {
    store_turns<kColumns>(problem, piece, thread);
  }
  if (problem.recycles_sums()) {
    if (piece.row == 0) {
      for (int i = thread; i < problem.heads_with_sums; i += kPreprocessThreads) {
        device::store(problem.added + i, 0.f);
      }
    }
    if (piece.row >= problem.n_sum_rows()) {
      return;
    }
  }
  clear_sums<kColumns>(problem.sums_of(piece.row));
}

}  // namespace pyflash::backward
