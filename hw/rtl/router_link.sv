// One end of a wire between routers: order, no loss, and credit of each channel, over a wire that may lose words but never changes their order.
// A MAC is to drop words that were damaged.
//
// A wire carries a word in each cycle, as serial links do, with a packet or without. Words, from bit 0 on:
//   state (2 bits), packet (there is one), miss (packets from `ack` on are missing), channel (4), channel of the limit (4), hops (8), number (12),
//   ack (12), limit (12), zero (8), packet (256).
// Number, ack, limit and hops are those of the software's wires (crate `ringbell-mesh`, `Head`). The packet of a word without one is the sender's rules.
//
// Its packets begin anew when both ends are Up (`router_link_life`). A word that says what cannot be brings the end Down.
module router_link #(
  parameter int unsigned Bytes    = 32,
  parameter int unsigned Channels = 2,
  parameter int unsigned Depth    = 8,
  // As in `router_link_tx`.
  parameter int unsigned Window   = 64,
  parameter int unsigned Again    = 512,
  // As in `router_link_life`.
  parameter int unsigned Quiet    = 256,
  parameter int unsigned Silence  = 4096,
`ifdef FORMAL
  // The proof's own: joined to itself, not to a router.
  parameter bit Alone = 1'b1,
`endif
  localparam int unsigned Bits    = 8 * Bytes
) (
  input  logic                clk_i,
  input  logic                rst_ni,

  // Both ends must have the same: a digest of the tables.
  input  logic [31:0]         digest_i,
  output logic                up_o,
  // The other end has other rules.
  output logic                refused_o,
  // It has gone down, and packets are sent again.
  output logic                down_o,
  output logic                again_o,

  input  logic                wire_valid_i,
  input  logic [Bits+63:0]    wire_i,
  output logic [Bits+63:0]    wire_o,
  input  logic                wire_ready_i,

  // Packets for the wire, with their hops.
  output logic [Channels-1:0] free_o,
  output logic [Channels-1:0] free_two_o,
  input  logic                tx_valid_i,
  output logic                tx_ready_o,
  input  logic [3:0]          tx_channel_i,
  input  logic [Bits+7:0]     tx_i,

  // Packets that came, each into a slot of its channel.
  output logic [Channels-1:0] rx_valid_o,
  output logic [Bits+7:0]     rx_o,
  input  logic [Channels-1:0] rx_release_i
`ifdef FORMAL
  // Packets that stand here, by channel.
  , output logic [12*Channels-1:0] f_stand_o
`endif
);
  localparam logic [1:0] Down = 2'd0, Up = 2'd2;

  // ---------------------------------------------------------------- Life
  logic [1:0]  state_q;
  logic        tx_broken, rx_broken;
  wire  [1:0]  other  = wire_i[1:0];
  // The version of the words is the last byte.
  wire  [63:0] rules  = {digest_i, 16'(Depth), 8'(Channels), 8'd1};
  wire         hears  = wire_valid_i && wire_i[63:56] == '0;
  wire         counts = hears && up_o && other == Up;
  router_link_life #(.Quiet(Quiet), .Silence(Silence)
`ifdef FORMAL
    , .Paired(1'b0)
`endif
  ) i_life (
    .clk_i, .rst_ni, .hears_i(hears), .other_i(other), .agrees_i(wire_i[127:64] == rules), .broken_i(tx_broken || rx_broken),
    .state_o(state_q), .up_o, .refused_o, .down_o);

  // ---------------------------------------------------------------- Both directions
`ifdef FORMAL
  (* anyconst *) logic [11:0] f_which;
  logic [11:0]            f_next, f_base, f_send;
  logic [Bits+11:0]       f_held;
  logic [4*Window-1:0]    f_channels;
  logic [12*Channels-1:0] f_tx_limits, f_credits, f_coming, f_received, f_rx_limits;
`endif
  logic            packet, miss;
  logic [3:0]      channel, limit_channel;
  logic [11:0]     number, ack, limit;
  logic [Bits+7:0] data;
  router_link_tx #(.Width(Bits + 8), .Channels(Channels), .Depth(Depth), .Window(Window), .Again(Again)
`ifdef FORMAL
    , .Alone(Alone)
`endif
  ) i_tx (
    .clk_i, .rst_ni, .up_i(up_o), .free_o, .free_two_o, .in_valid_i(tx_valid_i), .in_ready_o(tx_ready_o), .in_channel_i(tx_channel_i), .in_i(tx_i),
    .told_i(counts), .ack_i(wire_i[43:32]), .miss_i(wire_i[3]), .limit_channel_i(wire_i[11:8]), .limit_i(wire_i[55:44]), .broken_o(tx_broken),
    .step_i(wire_ready_i), .packet_o(packet), .channel_o(channel), .number_o(number), .out_o(data), .again_o
`ifdef FORMAL
    , .f_which_i(f_which), .f_expected_i(ack), .f_next_o(f_next), .f_base_o(f_base), .f_send_o(f_send),
    .f_held_o(f_held), .f_channels_o(f_channels), .f_coming_o(f_coming), .f_limits_o(f_tx_limits), .f_credits_o(f_credits)
`endif
    );
  router_link_rx #(.Width(Bits + 8), .Channels(Channels), .Depth(Depth), .Window(Window)
`ifdef FORMAL
    , .Alone(Alone)
`endif
  ) i_rx (
    .clk_i, .rst_ni, .up_i(up_o), .packet_i(counts && wire_i[2]), .channel_i(wire_i[7:4]), .number_i(wire_i[31:20]),
    .in_i({wire_i[19:12], wire_i[Bits+63:64]}), .broken_o(rx_broken), .out_valid_o(rx_valid_o), .out_o(rx_o), .release_i(rx_release_i),
    .step_i(wire_ready_i), .ack_o(ack), .miss_o(miss), .limit_channel_o(limit_channel), .limit_o(limit)
`ifdef FORMAL
    , .f_received_o(f_received), .f_limits_o(f_rx_limits), .f_stand_o
`endif
    );

  // ---------------------------------------------------------------- The word on the wire
  logic [1:0]  said_q;
  logic        miss_q;
  logic [3:0]  limit_channel_q;
  logic [11:0] ack_q, limit_q;
  always_ff @(posedge clk_i) begin
    if (wire_ready_i) begin
      said_q          <= state_q;
      miss_q          <= miss;
      limit_channel_q <= limit_channel;
      ack_q           <= ack;
      limit_q         <= limit;
    end
    if (!rst_ni) said_q <= Down;
  end
  assign wire_o = {packet ? data[Bits-1:0] : Bits'(rules), 8'd0, limit_q, ack_q, number, data[Bits+7:Bits], limit_channel_q, channel, miss_q, packet, said_q};

`ifdef FORMAL
  if (Alone) begin : gen_alone
    `include "router_link_props.svh"
  end
`endif
endmodule
