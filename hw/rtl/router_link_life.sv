// The life of one end of a wire: Down, Init, Up, the states of BFD (RFC 5880 §6.2). Each end says its own state in every word.
//
// An end begins Down. It stays so for Quiet cycles, more than a round trip, in which what was on the wire has passed, and until the other end says that it
// is not Up either; then it is Init, and Up when the other end is as far. An end that hears of a Down goes Down too, as it does when the other end is
// silent, or is found broken. So two ends that are Up have both begun anew since the last of them was Down. Ends with different rules stay Down.
module router_link_life #(
  parameter int unsigned Quiet   = 256,
  // Cycles without a word after which the other end is gone.
  parameter int unsigned Silence = 4096
`ifdef FORMAL
  // The proof's own: another end beside this one.
  , parameter bit Paired = 1'b1
`endif
) (
  input  logic       clk_i,
  input  logic       rst_ni,

  // A word came; the state of the other end, and whether it has our rules. Those of an end that is Up were compared before.
  input  logic       hears_i,
  input  logic [1:0] other_i,
  input  logic       agrees_i,
  // The other end has said what cannot be.
  input  logic       broken_i,

  output logic [1:0] state_o,
  output logic       up_o,
  output logic       refused_o,
  // It is Up for the last cycle.
  output logic       down_o
);
  localparam logic [1:0] Down = 2'd0, Init = 2'd1, Up = 2'd2;
  localparam int unsigned QuietW   = $clog2(Quiet + 1);
  localparam int unsigned SilenceW = $clog2(Silence + 1);

  logic [QuietW-1:0]   quiet_q;
  logic [SilenceW-1:0] silence_q;
  wire                 silent = silence_q == SilenceW'(Silence);
  wire                 agrees = agrees_i || other_i == Up;

  assign up_o   = state_o == Up;
  assign down_o = up_o && (silent || (hears_i && other_i == Down) || broken_i);

  always_ff @(posedge clk_i) begin
    silence_q <= hears_i ? '0 : silent ? silence_q : silence_q + 1'b1;
    if (quiet_q != '0) quiet_q <= quiet_q - 1'b1;
    if (hears_i && other_i != Up) refused_o <= !agrees;
    unique case (state_o)
      Down: if (hears_i && agrees && quiet_q == '0) begin
        if (other_i == Down) state_o <= Init;
        else if (other_i == Init) state_o <= Up;
      end
      Init: if (silent || (hears_i && !agrees)) begin
        state_o <= Down;
      end else if (hears_i && (other_i == Init || other_i == Up)) begin
        state_o <= Up;
      end
      default: if (down_o) begin
        state_o <= Down;
        quiet_q <= QuietW'(Quiet);
      end
    endcase
    if (!rst_ni) begin
      state_o   <= Down;
      quiet_q   <= QuietW'(Quiet);
      silence_q <= '0;
      refused_o <= 1'b0;
    end
  end

`ifdef FORMAL
  `include "router_link_life_props.svh"
`endif
endmodule
