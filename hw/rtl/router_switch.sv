// The crossbar of a router: first packets of its queues to its outputs, the wires first and then the node. Queue Channels * i + c has what came by input i,
// wires first and then the node, in channel c. A packet keeps its channel, and leaves when its channel has a free slot at the other end of its wire, or two
// where it enters a ring (bubble flow control). One without a way is dropped.
//
// Each output takes a packet a cycle, independent of the other outputs, from the queues in turn (`router_arbiter`).
module router_switch #(
  parameter int unsigned Width    = 264,
  parameter int unsigned Wires    = 4,
  parameter int unsigned Channels = 2,
  localparam int unsigned Outputs = Wires + 1,
  localparam int unsigned Queues  = (Wires + 1) * Channels
) (
  input  logic                      clk_i,
  input  logic                      rst_ni,

  // As in `router_arbiter`.
  input  logic [7:0]                poll_i,
  input  logic                      skip_i,
  // By wire: the queues whose packets need two free slots there.
  input  logic [Wires*Queues-1:0]   entering_i,

  // The first packet of each queue, and where it goes: a wire, the node (Wires), or nowhere.
  input  logic [Queues-1:0]         in_valid_i,
  input  logic [4*Queues-1:0]       in_way_i,
  input  logic [Width*Queues-1:0]   in_i,
  // It leaves, or is dropped.
  output logic [Queues-1:0]         in_taken_o,
  output logic [Queues-1:0]         dropped_o,

  // By wire: channels with one free slot, and with two.
  input  logic [Wires*Channels-1:0] free_i,
  input  logic [Wires*Channels-1:0] free_two_i,
  output logic [Outputs-1:0]        out_valid_o,
  input  logic [Outputs-1:0]        out_ready_i,
  output logic [4*Outputs-1:0]      out_channel_o,
  output logic [Width*Outputs-1:0]  out_o
);
  logic [Queues-1:0] request [Outputs], pick [Outputs];
  always_comb begin
    for (int unsigned q = 0; q < Queues; q++) dropped_o[q] = in_valid_i[q] && 32'(in_way_i[4*q +: 4]) > Wires;
  end
  for (genvar o = 0; o < Outputs; o++) begin : gen_output
    for (genvar q = 0; q < Queues; q++) begin : gen_request
      wire goes = in_valid_i[q] && in_way_i[4*q +: 4] == 4'(o);
      if (o < Wires) begin : gen_wire
        assign request[o][q] = goes && (entering_i[o*Queues+q] ? free_two_i[o*Channels+q%Channels] : free_i[o*Channels+q%Channels]);
      end else begin : gen_node
        assign request[o][q] = goes;
      end
    end
    router_arbiter #(.N(Queues)) i_arbiter (
      .clk_i, .rst_ni, .poll_i, .skip_i, .request_i(request[o]), .pick_o(pick[o]), .ready_i(out_ready_i[o]));
    assign out_valid_o[o] = pick[o] != '0;
    always_comb begin
      out_channel_o[4*o +: 4]    = '0;
      out_o[Width*o +: Width] = '0;
      for (int unsigned q = 0; q < Queues; q++) if (pick[o][q]) begin
        out_channel_o[4*o +: 4] = 4'(q % Channels);
        out_o[Width*o +: Width] = in_i[Width*q +: Width];
      end
    end
  end
  always_comb begin
    in_taken_o = dropped_o;
    for (int unsigned o = 0; o < Outputs; o++) if (out_ready_i[o]) in_taken_o = in_taken_o | pick[o];
  end

`ifdef FORMAL
  `include "router_switch_props.svh"
`endif
endmodule
