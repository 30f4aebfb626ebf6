// Checks custom resources on stdin, a JSON list, with the models of their definitions.

import { readFileSync } from "node:fs";
import * as argoCd from "@kubernetes-models/argo-cd/argoproj.io/v1alpha1";
import * as certManager from "@kubernetes-models/cert-manager/cert-manager.io/v1";
import * as externalSecrets from "@kubernetes-models/external-secrets/external-secrets.io/v1";
import * as gatewayApi from "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1";
import * as keda from "@kubernetes-models/keda/keda.sh/v1alpha1";
import * as prometheus from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const packages = {
  "argoproj.io/v1alpha1": argoCd,
  "cert-manager.io/v1": certManager,
  "external-secrets.io/v1": externalSecrets,
  "gateway.networking.k8s.io/v1": gatewayApi,
  "keda.sh/v1alpha1": keda,
  "monitoring.coreos.com/v1": prometheus,
};

let failed = 0;
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    const Model = packages[object.apiVersion][object.kind];
    new Model(object).validate();
  } catch (error) {
    failed = 1;
    console.error(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
}
process.exit(failed);
