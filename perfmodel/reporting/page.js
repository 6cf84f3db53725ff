"use strict";
// Gives the frames of the figures the colours of the page, also when these change.
(function () {
  if (typeof Bokeh === "undefined") return;
  function paint(model) {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const text = of("--text"), soft = of("--soft"), line = of("--line");
    if (model.type.endsWith("Axis")) {
      model.setv({
        axis_label_text_color: text, major_label_text_color: text, axis_line_color: soft,
        minor_tick_line_color: null,
      });
      if (model.major_tick_line_color !== null) model.major_tick_line_color = soft;
    } else if (model.type === "Grid") {
      model.grid_line_color = line;
    } else if (model.type === "Legend") {
      model.setv({label_text_color: text, inactive_fill_color: of("--ground")});
    }
  }
  function all() {
    for (const shown of Bokeh.documents) {
      for (const model of shown.all_models) paint(model);
    }
    document.documentElement.dataset.painted = theme.shown();
  }
  theme.onChange(all);
  const wait = setInterval(function () {
    if (Bokeh.documents.length === 0) return;
    clearInterval(wait);
    all();
  }, 10);
})();
