// What a dashboard of ours may hold: Grafana's own types, and the options of the panels that we use.
// Grafana's types have enums where JSON has words.
import type { Dashboard, Panel, RowPanel, FieldConfig } from '@grafana/schema';
import type * as TimeSeries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type * as Stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as Table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as Heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';

type Plain<T> = unknown extends T
  ? T
  : T extends string
    ? `${T}`
    : T extends object
      ? { [K in keyof T]: Plain<T[K]> }
      : T;

type Source = { type: 'prometheus'; uid: string };

interface Target {
  refId: string;
  datasource: Source;
  expr: string;
  legendFormat: string;
  editorMode: 'code';
  range: boolean;
  instant: boolean;
  format?: 'table' | 'heatmap';
}

// Those of the field's own, and those of the panel's kind in `custom`.
type Fields<Custom> = Omit<Plain<FieldConfig>, 'custom'> & { custom?: Partial<Plain<Custom>> };

type Of<Type extends string, Options, Custom> = Omit<
  Plain<Panel>,
  'type' | 'options' | 'fieldConfig' | 'targets' | 'datasource'
> & {
  type: Type;
  datasource: Source;
  targets: Target[];
  options: Partial<Plain<Options>>;
  fieldConfig: {
    defaults: Fields<Custom>;
    overrides: { matcher: { id: 'byName'; options: string }; properties: { id: string; value: unknown }[] }[];
  };
};

type Panels =
  | Of<'timeseries', TimeSeries.Options, TimeSeries.FieldConfig>
  | Of<'stat', Stat.Options, Record<string, never>>
  | Of<'table', Table.Options, Table.FieldConfig>
  | Of<'heatmap', Heatmap.Options, Heatmap.FieldConfig>
  | (Plain<RowPanel> & { type: 'row' });

export type Checked = Omit<Plain<Dashboard>, 'panels'> & { panels: Panels[] };
